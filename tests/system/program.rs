//! Programs of the build that this test belongs to. One that is older than its sources is refused: `cargo test` of one
//! package does not build the programs of others.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Path of a program in the folder above the test programs.
pub(crate) fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().unwrap().with_file_name(name);
    if let Some(problem) = problem(&path) {
        panic!(
            "{problem}; build it: cargo build --workspace --bins, with the profile and features of this test"
        );
    }
    path
}

/// Why the program is not of the present sources. Cargo lists them in the file with the suffix `.d` next to it, all
/// packages of the workspace included, and itself builds again what is older than one of them.
fn problem(program: &Path) -> Option<String> {
    let shown = program.display();
    let Some(built) = modified(program) else {
        return Some(format!("{shown} is missing"));
    };
    let list = program.with_extension("d");
    let Ok(list) = fs::read_to_string(&list) else {
        return Some(format!(
            "{} with the sources of the program is missing",
            list.display()
        ));
    };
    let sources = sources(&list);
    if sources.is_empty() {
        return Some(format!("no source of {shown} is listed"));
    }
    sources.iter().find_map(|source| match modified(source) {
        Some(changed) if changed <= built => None,
        Some(_) => Some(format!(
            "{shown} is older than its source {}",
            source.display()
        )),
        None => Some(format!(
            "{shown} has a source that is gone: {}",
            source.display()
        )),
    })
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// Files after the colon of the first line; a blank in a name follows a backslash.
fn sources(list: &str) -> Vec<PathBuf> {
    let line = list.lines().next().unwrap_or_default();
    let (_, names) = line.split_once(": ").unwrap_or_default();
    let names = names.replace("\\ ", "\0");
    names
        .split_whitespace()
        .map(|name| name.replace('\0', " ").into())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;

    /// Problem of a program that was built `age` after its source changed.
    fn problem_after(age: i64) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["a b.rs", "c.rs", "program"] {
            File::create(path(name)).unwrap();
        }
        let changed = modified(&path("a b.rs")).unwrap();
        let seconds = Duration::from_secs(age.unsigned_abs());
        let built = if age < 0 {
            changed - seconds
        } else {
            changed + seconds
        };
        File::open(path("program"))
            .unwrap()
            .set_modified(built)
            .unwrap();
        File::open(path("c.rs"))
            .unwrap()
            .set_modified(changed)
            .unwrap();
        let shown = folder.path().display();
        fs::write(
            path("program.d"),
            format!("{shown}/program: {shown}/a\\ b.rs {shown}/c.rs\n"),
        )
        .unwrap();
        problem(&path("program"))
    }

    #[test]
    fn program_older_than_a_source_is_refused() {
        assert_eq!(problem_after(5), None);
        assert_eq!(problem_after(0), None);
        let problem = problem_after(-5).unwrap();
        assert!(
            problem.contains("program is older than its source") && problem.ends_with("a b.rs"),
            "{problem}"
        );
    }

    #[test]
    fn program_without_its_sources_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        assert!(problem(&program).unwrap().ends_with("program is missing"));
        File::create(&program).unwrap();
        assert!(
            problem(&program)
                .unwrap()
                .contains("with the sources of the program is missing")
        );
        let list = program.with_extension("d");
        fs::write(&list, "").unwrap();
        assert!(problem(&program).unwrap().starts_with("no source"));
        fs::write(
            &list,
            format!("p: {}\n", folder.path().join("gone.rs").display()),
        )
        .unwrap();
        assert!(problem(&program).unwrap().contains("a source that is gone"));
    }
}
