//! What a machine yield_backoff a server, what a server would choose on it, and what stands in its way:
//! the insides of `tidewater info` and `tidewater doctor`.
//!
//! Everything is read once, from `/sys` and `/proc` below a root; the rest is a function of what
//! was read. So each finding is tested on a machine that has just that defect.
//!
//! | module | holds |
//! |---|---|
//! | `facts` | what is read beside the topology: limits, kernel, clock, loopback |
//! | `choice` | what servers would choose |
//! | `draw` | the picture of it |
//! | `checks`, `rdma`, `system` | the checks |
//! | `text` | lines of 100 columns |

mod checks;
mod choice;
mod draw;
mod facts;
mod rdma;
mod system;
mod text;

pub use checks::{Check, Report, Verdict, examine};
pub use choice::{Chosen, Question, choose};
pub use draw::draw;
pub use facts::{Clock, Limit, Machine};
