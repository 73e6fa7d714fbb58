//! The parts of the program `tidewater`: the launcher that starts a job, the checks of a host, man
//! pages.
//!
//! | module | holds |
//! |---|---|
//! | [`launcher`] | `tidewater run`: coordinator, servers and workers as child processes, here or remote |
//! | [`doctor`] | `tidewater info` and `tidewater doctor` |
//! | [`manpages`] | man pages and shell completions from a command line of `clap` |
//!
//! A program that only trains links the crate `tidewater` and none of this.

#![cfg_attr(not(test), forbid(unsafe_code))]

pub mod doctor;
pub mod launcher;
pub mod manpages;
