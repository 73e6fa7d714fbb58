//! The parts of the program `tidewater`: the launcher that starts a job, the checks of a host, man
//! pages.
//!
//! | module | holds |
//! |---|---|
//! | [`launcher`] | `tidewater run`: coordinator, servers and workers as child processes, here or remote |
//! | [`doctor`] | `tidewater info` and `tidewater doctor` |
//! | [`manpages`] | man pages and shell completions from a command line of `clap` |
//! | [`cli`] | the command line itself |
//!
//! A program that only trains links the crate `tidewater` and none of this. A server with functions of
//! the user's own is a program of three lines that does what `tidewater` does:
//!
//! ```no_run
//! use tidewater_functions::{Functions, register};
//! # struct Ramp;
//! # impl tidewater_functions::Function for Ramp {}
//!
//! fn main() -> std::process::ExitCode {
//!     register(Functions::default().with("ramp", Ramp)).expect("nothing was registered before");
//!     tidewater_cli::cli::main()
//! }
//! ```

#![cfg_attr(not(test), forbid(unsafe_code))]

pub mod cli;
pub mod doctor;
pub mod launcher;
pub mod manpages;
