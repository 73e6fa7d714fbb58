//! The program `tidewater`: the launcher, and the roles that it starts.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidewater_cli::cli::main()
}
