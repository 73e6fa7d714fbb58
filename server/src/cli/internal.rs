//! `tidewater __child` and `tidewater __guard`: what the launcher runs beside the job. They are
//! hidden because nobody but the launcher has a use for them.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use tidewater_server::launcher::{self, shim};

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
    match shim::enter(args.launcher, program, rest) {
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
