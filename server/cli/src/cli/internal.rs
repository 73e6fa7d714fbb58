//! `tidewater __child`, `__guard` and `__remote`: what the launcher runs beside the job, here and on other
//! hosts; `__pages`, what the installer runs. They are hidden because nobody else has a use for them.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory as _};
use tidewater_cli::launcher::{self, exec_shim};

/// The arguments of `__child`.
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {
    /// The launcher's process id.
    launcher: i32,
    /// What to become.
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

/// Waits for the end of the job and sweeps up. stderr is closed to it: the code tells.
pub(crate) fn guard() -> ExitCode {
    match launcher::guard(std::io::stdin()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(3),
    }
}

/// Runs what the launcher, on another host, orders over stdin.
pub(crate) fn remote() -> ExitCode {
    let executable = match executable() {
        Ok(path) => path,
        Err(code) => return code,
    };
    // Not the buffered one: what is waited for on its descriptor must not lie in a buffer.
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
    /// Below which share/man and the folders of shells are.
    prefix: PathBuf,
}

/// Writes man pages and completions, for whoever installs.
pub(crate) fn pages(args: &PagesArgs) -> ExitCode {
    match tidewater_cli::manpages::write("tidewater", &super::Cli::command(), &args.prefix) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            super::complain(format_args!("{}: {error}", args.prefix.display()));
            ExitCode::from(3)
        }
    }
}

/// This program, to be started again.
pub(crate) fn executable() -> Result<PathBuf, ExitCode> {
    std::env::current_exe().map_err(|error| {
        super::complain(format_args!(
            "cannot find my own executable: {error}; mount /proc"
        ));
        ExitCode::from(3)
    })
}
