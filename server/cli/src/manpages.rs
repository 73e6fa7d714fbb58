//! Man pages and shell completions of the binaries, from the command lines that they parse.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;

/// Writes those of program `name` below `prefix`, where shells and `man` search: `share/man/man1`,
/// and the folders of bash, zsh and fish. Hidden subcommands have none.
///
/// # Errors
/// A folder or file cannot be written.
pub fn write(name: &'static str, command: &Command, prefix: &Path) -> io::Result<()> {
    let mut command = without_hidden(name, command);
    for (shell, folder) in [
        (Shell::Bash, "share/bash-completion/completions"),
        (Shell::Zsh, "share/zsh/site-functions"),
        (Shell::Fish, "share/fish/vendor_completions.d"),
    ] {
        let folder = prefix.join(folder);
        fs::create_dir_all(&folder)?;
        let path = clap_complete::generate_to(shell, &mut command, name, &folder)?;
        if shell == Shell::Bash {
            // Under the program's name alone a shell finds and loads it on demand.
            fs::rename(path, folder.join(name))?;
        }
    }
    let pages = prefix.join("share/man/man1");
    fs::create_dir_all(&pages)?;
    clap_mangen::generate_to(command, &pages)
}

/// The command with only those subcommands that its help shows.
fn without_hidden(name: &'static str, command: &Command) -> Command {
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let shown: Vec<Command> = shown.cloned().collect();
    let mut bare = Command::new(name)
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .subcommands(shown)
        .args(command.get_arguments());
    if let Some(about) = command.get_about() {
        bare = bare.about(about.clone());
    }
    if let Some(more) = command.get_after_help() {
        bare = bare.after_help(more.clone());
    }
    bare
}
