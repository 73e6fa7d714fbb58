//! The devices of a host, the choices of a server on it, and faults: the code of `tidewater info`
//! and `tidewater doctor`.
//!
//! Everything is read once, from `/sys` and `/proc` below a root; the rest is a function of that.
//! So each finding is tested on a host with just that defect.
//!
//! | module | holds |
//! |---|---|
//! | `facts` | facts apart from the topology: limits, kernel, clock, loopback |
//! | `choice` | the choices of servers |
//! | `draw` | the picture of them |
//! | `checks`, `rdma`, `fabric`, `system` | the checks |
//! | `plan` | what a job of a given size takes |
//! | `text` | lines of 100 columns |

mod checks;
mod choice;
mod draw;
mod fabric;
mod facts;
mod plan;
mod rdma;
mod system;
mod text;

pub use checks::{Check, Report, Verdict, examine};
pub use choice::{Chosen, Question, choose};
pub use draw::draw;
pub use facts::{Clock, Limit, Machine};
pub use plan::Plan;
