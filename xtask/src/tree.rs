//! Source files of the project: of the work tree, or of a commit.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, thread};

use crate::failure::{Failure, Result};

/// Language of a file, which decides how comments look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Rust,
    /// Shell, awk, make: `#` begins a comment.
    Script,
    Toml,
    Python,
    /// C and C++.
    C,
    Fortran,
    Markdown,
}

impl Language {
    /// Language by name and first line; `None` for files that hold neither code nor prose.
    fn of(path: &str, text: &str) -> Option<Self> {
        let name = path.rsplit('/').next().unwrap_or(path);
        let Some((_, extension)) = name.rsplit_once('.') else {
            return (name == "Makefile" || text.starts_with("#!")).then_some(Self::Script);
        };
        match extension {
            "rs" => Some(Self::Rust),
            "sh" | "awk" | "sbatch" | "mk" | "cmake" => Some(Self::Script),
            "toml" => Some(Self::Toml),
            "py" | "pyi" => Some(Self::Python),
            "c" | "h" | "cc" | "cpp" | "hpp" => Some(Self::C),
            "f90" | "F90" => Some(Self::Fortran),
            "md" => Some(Self::Markdown),
            _ if text.starts_with("#!") && !path.ends_with(".py") => Some(Self::Script),
            _ => None,
        }
    }
}

/// One file of a known language.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// Path from the root, with `/`.
    pub(crate) path: String,
    pub(crate) language: Language,
    pub(crate) text: String,
}

/// Files of known languages, ordered by path.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) files: Vec<SourceFile>,
    /// Folders with a `Cargo.toml` that declares a package.
    crate_folders: BTreeSet<String>,
}

impl Tree {
    /// Files of the work tree that git tracks or would add.
    pub(crate) fn of_work_tree(root: &Path) -> Result<Self> {
        let listing = git(
            root,
            &[
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
                "--deduplicate",
            ],
        )?;
        let mut contents = Vec::new();
        for name in listing.split('\0').filter(|name| !name.is_empty()) {
            let path = root.join(name);
            // Links and deleted files hold no text of their own.
            if !fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file()) {
                continue;
            }
            let bytes = fs::read(&path).map_err(|source| Failure::File {
                action: "read",
                path: name.to_owned(),
                source,
            })?;
            contents.push((
                name.to_owned(),
                String::from_utf8_lossy(&bytes).into_owned(),
            ));
        }
        Ok(Self::new(contents))
    }

    /// Files of a commit.
    pub(crate) fn of_commit(root: &Path, commit: &str) -> Result<Self> {
        let listing = git(
            root,
            &[
                "ls-tree",
                "-r",
                "-z",
                "--full-tree",
                "--end-of-options",
                commit,
            ],
        )?;
        let mut names = Vec::new();
        let mut objects = String::new();
        for entry in listing.split('\0') {
            let Some((meta, name)) = entry.split_once('\t') else {
                continue;
            };
            let fields: Vec<&str> = meta.split(' ').collect();
            if let ["100644" | "100755", "blob", object] = fields[..] {
                names.push(name.to_owned());
                objects.push_str(object);
                objects.push('\n');
            }
        }
        let answer = cat_files(root, objects)?;
        Ok(Self::new(
            names.into_iter().zip(split_batch(&answer)?).collect(),
        ))
    }

    /// Files with these paths and texts; those of no known language are left out.
    pub(crate) fn new(contents: Vec<(String, String)>) -> Self {
        let crate_folders = contents
            .iter()
            .filter(|(_, text)| text.lines().any(|line| line.trim() == "[package]"))
            .filter_map(|(path, _)| path.strip_suffix("Cargo.toml"))
            .map(|folder| folder.trim_end_matches('/').to_owned())
            .collect();
        let mut files: Vec<SourceFile> = contents
            .into_iter()
            .filter_map(|(path, text)| {
                let language = Language::of(&path, &text)?;
                Some(SourceFile {
                    path,
                    language,
                    text,
                })
            })
            .collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self {
            files,
            crate_folders,
        }
    }

    /// Folder of the crate that holds the path; outside of crates the folder at the top.
    pub(crate) fn area<'p>(&self, path: &'p str) -> &'p str {
        let mut end = path.len();
        while let Some(slash) = path[..end].rfind('/') {
            if self.crate_folders.contains(&path[..slash]) {
                return &path[..slash];
            }
            end = slash;
        }
        path.find('/').map_or(".", |slash| &path[..slash])
    }

    /// Whether the area is the folder of a crate.
    pub(crate) fn is_crate(&self, area: &str) -> bool {
        self.crate_folders.contains(area)
    }

    /// File with that path.
    pub(crate) fn file(&self, path: &str) -> Option<&SourceFile> {
        let at = self
            .files
            .binary_search_by(|file| file.path.as_str().cmp(path))
            .ok()?;
        self.files.get(at)
    }
}

/// Root of the checkout that holds the current folder.
pub(crate) fn root() -> Result<PathBuf> {
    let answer = git(Path::new("."), &["rev-parse", "--show-toplevel"])?;
    Ok(PathBuf::from(answer.trim_end_matches('\n')))
}

/// What a git command prints.
pub(crate) fn git(folder: &Path, arguments: &[&str]) -> Result<String> {
    output(Command::new("git").current_dir(folder).args(arguments))
}

/// What a command prints; its error output is part of the failure.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Failure::Start {
            program: command.get_program().to_string_lossy().into_owned(),
            source,
        })?;
    if !out.status.success() {
        return Err(Failure::Command {
            command: shown(command),
            message: String::from_utf8_lossy(&out.stderr).trim().to_owned(),
        });
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Command as one would type it.
pub(crate) fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy()];
    words.extend(
        command
            .get_args()
            .map(|argument| argument.to_string_lossy()),
    );
    words.join(" ")
}

/// Contents of git objects, in the format of `git cat-file --batch`.
fn cat_files(root: &Path, objects: String) -> Result<Vec<u8>> {
    let mut command = Command::new("git");
    command.current_dir(root).args(["cat-file", "--batch"]);
    let start = |source| Failure::Start {
        program: "git".to_owned(),
        source,
    };
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(start)?;
    let mut stdin = child.stdin.take();
    // Both pipes fill up if one thread writes all names before it reads.
    let writer = thread::spawn(move || {
        stdin
            .as_mut()
            .map_or(Ok(()), |stdin| stdin.write_all(objects.as_bytes()))
    });
    let out = child.wait_with_output().map_err(start)?;
    let written = writer.join().is_ok_and(|result| result.is_ok());
    if !out.status.success() || !written {
        return Err(Failure::Command {
            command: shown(&command),
            message: out.status.to_string(),
        });
    }
    Ok(out.stdout)
}

/// Splits the answer of `git cat-file --batch`: a header line with the size, the bytes, a newline.
fn split_batch(answer: &[u8]) -> Result<Vec<String>> {
    let malformed = || Failure::Malformed {
        subject: "git cat-file --batch".to_owned(),
        problem: "an object without its size or bytes".to_owned(),
        remedy: "look for missing objects with git fsck".to_owned(),
    };
    let mut texts = Vec::new();
    let mut rest = answer;
    while !rest.is_empty() {
        let end = rest
            .iter()
            .position(|byte| *byte == b'\n')
            .ok_or_else(malformed)?;
        let header = String::from_utf8_lossy(&rest[..end]);
        let size: usize = header
            .rsplit(' ')
            .next()
            .and_then(|size| size.parse().ok())
            .ok_or_else(malformed)?;
        let body = rest
            .get(end + 1..)
            .and_then(|body| body.get(..size))
            .ok_or_else(malformed)?;
        texts.push(String::from_utf8_lossy(body).into_owned());
        rest = rest.get(end + 2 + size..).ok_or_else(malformed)?;
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(paths: &[&str]) -> Tree {
        let text = |path: &str| {
            if path.ends_with("Cargo.toml") {
                "[package]\n"
            } else {
                "#!/bin/sh\n"
            }
        };
        Tree::new(
            paths
                .iter()
                .map(|path| (path.to_string(), text(path).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn area_is_innermost_crate() {
        let tree = tree(&[
            "server/Cargo.toml",
            "server/engine/Cargo.toml",
            "ci/all.sh",
            "README.md",
        ]);
        assert_eq!(tree.area("server/engine/src/lib.rs"), "server/engine");
        assert_eq!(tree.area("server/src/engine/lib.rs"), "server");
        assert_eq!(tree.area("ci/lib/x.sh"), "ci");
        assert_eq!(tree.area("README.md"), ".");
        assert!(tree.is_crate("server") && !tree.is_crate("ci"));
    }

    #[test]
    fn folder_name_prefix_is_no_area() {
        let tree = tree(&["serve/Cargo.toml"]);
        assert_eq!(tree.area("server/a.rs"), "server");
    }

    #[test]
    fn script_without_extension_by_first_line() {
        assert_eq!(
            Language::of(".ci/run", "#!/usr/bin/env bash\n"),
            Some(Language::Script)
        );
        assert_eq!(Language::of("LICENSE-MIT", "MIT\n"), None);
        assert_eq!(Language::of("a/b.json", "{}"), None);
    }

    #[test]
    fn batch_of_objects_is_split_by_size() {
        let texts = split_batch(b"a blob 3\nx\ny\nb blob 0\n\n").unwrap();
        assert_eq!(texts, ["x\ny", ""]);
        assert!(split_batch(b"a missing\n").is_err());
        assert!(split_batch(b"a blob 30\nshort\n").is_err());
    }
}
