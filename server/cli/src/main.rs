//! The program `tidewater`: the launcher, and the roles that it starts.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
