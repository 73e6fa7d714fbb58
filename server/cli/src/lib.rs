//! What the program `tidewater` is made of: the launcher that starts a job, the checks of a machine, man pages.
//!
//! | module | holds |
//! |---|---|
//! | [`launcher`] | `tidewater run`: one coordinator, servers and workers as child processes, on this host or by a remote shell |
//! | [`doctor`] | `tidewater info` and `tidewater doctor` |
//! | [`manpages`] | man pages and shell completions from a command line of `clap` |
//!
//! A program that only trains links the crate `tidewater` and none of this.

#![cfg_attr(not(test), forbid(unsafe_code))]

pub mod doctor;
pub mod launcher;
pub mod manpages;
