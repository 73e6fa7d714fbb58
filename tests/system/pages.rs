//! Man pages and completions agree with the programs' own help.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::rig::{output, tidewater, trainer};

/// Flags that a program's help explains: words of the lines that begin with one.
fn flags(program: &Path, subcommand: &str) -> Vec<String> {
    let help = output(program, &[subcommand, "--help"]);
    let help = String::from_utf8(help.stdout).unwrap();
    let explained = help
        .lines()
        .filter(|line| line.trim_start().starts_with('-'));
    let words =
        explained.flat_map(|line| line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')));
    let flags = words.filter(|word| word.starts_with("--") && word.len() > 3);
    let mut flags: Vec<String> = flags.map(str::to_owned).collect();
    flags.sort();
    flags.dedup();
    assert!(flags.len() > 3, "{subcommand}: {help}");
    flags
}

#[test]
fn of_both_programs_for_man_and_three_shells() {
    let prefix = tempfile::tempdir().unwrap();
    let share = prefix.path().join("share");
    let read = |name: String| fs::read_to_string(share.join(&name)).expect(&name);
    for (program, name, subcommands) in [
        (
            tidewater(),
            "tidewater",
            &["run", "server", "serve", "info", "launch-info"][..],
        ),
        (trainer().to_owned(), "tidewater-train", &["lr", "generate"]),
    ] {
        let done = output(&program, &["__pages", prefix.path().to_str().unwrap()]);
        assert!(done.status.success(), "{done:?}");
        let shells = [
            read(format!("bash-completion/completions/{name}")),
            read(format!("zsh/site-functions/_{name}")),
            read(format!("fish/vendor_completions.d/{name}.fish")),
        ];
        let main = read(format!("man/man1/{name}.1"));
        for subcommand in subcommands {
            let page = read(format!("man/man1/{name}-{subcommand}.1")).replace("\\-", "-");
            assert!(
                main.replace("\\-", "-").contains(subcommand),
                "{name} {subcommand}"
            );
            for flag in flags(&program, subcommand) {
                assert!(
                    page.contains(&flag),
                    "{name} {subcommand}: man without {flag}"
                );
                let bare = flag.trim_start_matches('-');
                for shell in &shells {
                    assert!(
                        shell.contains(bare),
                        "{name} {subcommand}: no {flag} in a shell"
                    );
                }
            }
        }
        for text in shells.iter().chain([&main]) {
            assert!(!text.contains("__pages"), "what is hidden is not completed");
        }
        let bash = share.join("bash-completion/completions").join(name);
        let checked = Command::new("bash").arg("-n").arg(bash).output().unwrap();
        assert!(checked.status.success(), "{checked:?}");
    }
    let wrong = output(&tidewater(), &["__pages", "/proc/none"]);
    assert_eq!(wrong.status.code(), Some(3), "{wrong:?}");
}
