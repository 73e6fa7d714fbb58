//! Which RDMA ports a process uses, in which order.
//!
//! | module | holds |
//! |---|---|
//! | `names` | ports as a user names them |
//! | `ports` | the usable ports of this host, ranked; why the others are not usable |
//! | `paths` | pairs of a port of each end, ranked |
//! | `warnings` | set-ups that work by chance |
//!
//! The procedure is that of ICE (RFC 8445): each end collects candidates, one end forms the pairs and
//! orders them, and the first pair that passes a connectivity check is used.

mod names;
mod paths;
mod ports;
mod warnings;

pub use names::{BadPortName, GidName, PortName, PortNames};
pub use paths::{PortPair, rank_pairs};
pub use ports::{PortCandidate, PortWish, RankedPorts, SkippedPort};
