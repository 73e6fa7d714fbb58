//! A service with servers that run a function by name. Programs in other languages call it as `scale`.
//!
//! ```text
//! functions TOKEN_FILE            prints a line that ends with the coordinator's address
//! ```
//! It serves until a signal ends it.

#![allow(clippy::print_stdout, reason = "a program")]

use std::error::Error;
use std::path::Path;

use tidewater::functions::{
    Elements, ElementsMut, Function, FunctionError, Functions, Piece, register,
};
use tidewater_launch::token;
use tidewater_service::embedded::{Cluster, ClusterConfig};

/// Multiplies elements by the first 8 argument bytes, an f64. Reduces a piece to its first index and
/// its number of elements, each as 8 bytes.
struct Scale;

/// Too few argument bytes.
const NO_FACTOR: FunctionError = FunctionError(1);
/// The table does not hold f64.
const NOT_F64: FunctionError = FunctionError(2);

impl Function for Scale {
    fn update(
        &self,
        arguments: &[u8],
        _: &Piece<'_>,
        target: ElementsMut<'_>,
    ) -> Result<(), FunctionError> {
        let factor = f64::from_le_bytes(*arguments.first_chunk().ok_or(NO_FACTOR)?);
        let ElementsMut::F64(target) = target else {
            return Err(NOT_F64);
        };
        for element in target {
            *element *= factor;
        }
        Ok(())
    }

    fn reduce(
        &self,
        _: &[u8],
        piece: &Piece<'_>,
        target: Elements<'_>,
        result: &mut Vec<u8>,
    ) -> Result<(), FunctionError> {
        let Elements::F64(target) = target else {
            return Err(NOT_F64);
        };
        result.extend_from_slice(&piece.first_index.to_le_bytes());
        result.extend_from_slice(&(target.len() as u64).to_le_bytes());
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args()
        .nth(1)
        .ok_or("usage: functions TOKEN_FILE")?;
    register(Functions::default().with("scale", Scale))?;
    let cluster = Cluster::start(&ClusterConfig {
        servers: 2,
        workers: 0,
        service: true,
        token: Some(token::read_file(Path::new(&file))?),
        ..ClusterConfig::default()
    })?;
    println!("functions at {}", cluster.environment().coordinator);
    loop {
        std::thread::park();
    }
}
