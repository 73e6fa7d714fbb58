//! `tidewater __child`, `__guard` and `__remote`, which the launcher runs here and on other hosts;
//! `__pages`, which the installer runs. They are hidden because users have no need for them.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::launcher::{self, exec_shim};
use clap::{Args, CommandFactory as _};

/// The arguments of `__child`.
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {
    /// Process id of the launcher.
    launcher: i32,
    /// Program to become, and its arguments.
    #[arg(required = true, num_args = 1.., trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Becomes the program; returns only if that fails.
pub(crate) fn child(args: &ChildArgs) -> ExitCode {
    let Some((program, rest)) = args.command.split_first() else {
        return ExitCode::from(2);
    };
    match exec_shim::enter(args.launcher, program, rest) {
        Ok(never) => match never {},
        Err(error) => {
            super::complain(&error);
            ExitCode::from(error.code())
        }
    }
}

/// Waits for the end of the job and sweeps up. Its stderr is closed: the exit code reports the
/// result.
pub(crate) fn guard() -> ExitCode {
    match launcher::guard(std::io::stdin()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(3),
    }
}

/// Runs the order that the launcher, on another host, sends over stdin.
pub(crate) fn remote() -> ExitCode {
    let executable = match executable() {
        Ok(path) => path,
        Err(code) => return code,
    };
    // Not the buffered stdin: bytes that the descriptor is polled for must not be in a buffer.
    let input = std::io::stdin().as_fd().try_clone_to_owned();
    let ended = match input {
        Ok(input) => launcher::remote(File::from(input), executable),
        Err(error) => {
            super::complain(format_args!("there is no stdin: {error}"));
            return ExitCode::from(3);
        }
    };
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            super::complain(&error);
            ExitCode::from(3)
        }
    }
}

/// The arguments of `__pages`.
#[derive(Debug, Args)]
pub(crate) struct PagesArgs {
    /// Prefix of share/man and the folders of shells.
    prefix: PathBuf,
}

/// Writes man pages and completions, for the installer.
pub(crate) fn pages(args: &PagesArgs) -> ExitCode {
    match crate::manpages::write("tidewater", &super::Cli::command(), &args.prefix) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            super::complain(format_args!("{}: {error}", args.prefix.display()));
            ExitCode::from(3)
        }
    }
}

/// Path of this program, to be started again.
pub(crate) fn executable() -> Result<PathBuf, ExitCode> {
    std::env::current_exe().map_err(|error| {
        super::complain(format_args!(
            "cannot find my own executable: {error}; mount /proc"
        ));
        ExitCode::from(3)
    })
}
