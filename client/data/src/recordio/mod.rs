//! RecordIO: files of records of any bytes, in two layouts of the same name.
//!
//! [`dmlc`] is that of dmlc-core and MXNet: each record has a header of its own. [`chunked`] is that of
//! PaddlePaddle and ElasticDL: chunks of records, compressed, with a checksum. The first four bytes of a file
//! say which it is. All integers are little-endian.

pub mod chunked;
pub mod dmlc;

#[cfg(test)]
mod tests;
