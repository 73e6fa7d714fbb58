//! Bootstrap records: data by which a process finds the others of its launch. A record holds addresses of
//! rank 0 and the job token.
//!
//! A record is one word of printable ASCII. It travels through a launcher's key-value store, a file, or a
//! broadcast of the program's own. **It is a secret**: any process that has it can join the job.

use std::fmt;

use super::is_address;
use tidewater_protocol::limits::{
    BOOTSTRAP_ADDRESSES_MAX, BOOTSTRAP_BYTES_MAX, HOST_BYTES_MAX, LAUNCHED_MAX,
};
use tidewater_protocol::wire::handshake::JobToken;

const BEGIN: &str = "tidewater-card-1";

/// Addresses of rank 0's coordinator, and the job token, by which the processes of a launch find each other.
/// `Debug` does not show the token.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BootstrapRecord {
    /// Number of processes of the launch.
    pub size: u32,
    /// The secret of the job.
    pub token: JobToken,
    /// Process id of rank 0, for messages.
    pub pid: u32,
    /// Name of its host, for messages.
    pub host: String,
    /// Addresses on which it listens, the likeliest to be reached first; at least one.
    pub addresses: Vec<String>,
}

/// Reason why bytes are no valid bootstrap record. The bytes may be a secret and are not quoted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes that are no bootstrap record of this version of Tidewater: {why}")]
pub struct BootstrapError {
    bytes: usize,
    why: &'static str,
}

impl BootstrapRecord {
    /// Creates the record of a launch of `size` processes with this process as rank 0. Of `addresses`, on which
    /// it listens, the first valid ones that fit the limits are included.
    pub fn new(size: u32, token: JobToken, addresses: impl IntoIterator<Item = String>) -> Self {
        let is_usable = |address: &String| is_address(address) && !address.contains(',');
        let host: String = tidewater_topology::hostinfo::host_name();
        let mut record = Self {
            size,
            token,
            pid: std::process::id(),
            host: host.chars().filter(|&c| is_plain(c)).collect(),
            addresses: addresses
                .into_iter()
                .filter(is_usable)
                .take(BOOTSTRAP_ADDRESSES_MAX)
                .collect(),
        };
        while record.encode().len() > BOOTSTRAP_BYTES_MAX && record.addresses.len() > 1 {
            record.addresses.pop();
        }
        record
    }

    /// Encodes the record as one word of printable ASCII, which contains the token.
    pub fn encode(&self) -> String {
        let Self {
            size, pid, host, ..
        } = self;
        let (token, addresses) = (self.token.to_hex(), self.addresses.join(","));
        format!("{BEGIN},{size},{pid},{host},{token},{addresses}")
    }

    /// Parses an encoded record. White space around it and zero bytes at its end are ignored.
    ///
    /// # Errors
    /// The text is no record.
    pub fn parse(text: &[u8]) -> Result<Self, BootstrapError> {
        let bytes = text.len();
        let error = |why| BootstrapError { bytes, why };
        let end = text
            .iter()
            .rposition(|b| *b != 0)
            .map_or(0, |last| last + 1);
        let text = text.get(..end).unwrap_or_default().trim_ascii();
        if text.len() > BOOTSTRAP_BYTES_MAX {
            return Err(error("too many"));
        }
        let text = std::str::from_utf8(text).map_err(|_| error("not text"))?;
        let mut words = text.split(',');
        if words.next() != Some(BEGIN) {
            return Err(error("another beginning"));
        }
        let mut number = |max: u32| {
            let number = words.next().and_then(|word| word.parse::<u32>().ok());
            number
                .filter(|&n| n <= max)
                .ok_or(error("a number that is none"))
        };
        let (size, pid) = (number(LAUNCHED_MAX)?, number(u32::MAX)?);
        let host = words.next().unwrap_or_default();
        if host.len() > HOST_BYTES_MAX || !host.chars().all(is_plain) {
            return Err(error("a host that is none"));
        }
        let token = words.next().and_then(JobToken::from_hex);
        let token = token.ok_or(error("a token that is none"))?;
        let addresses: Vec<String> = words.map(str::to_owned).collect();
        let count = addresses.len();
        let sane = addresses.iter().all(|address| is_address(address));
        if !(1..=BOOTSTRAP_ADDRESSES_MAX).contains(&count) || !sane || size == 0 {
            return Err(error("an address that is none"));
        }
        Ok(Self {
            size,
            token,
            pid,
            host: host.to_owned(),
            addresses,
        })
    }
}

impl fmt::Display for BootstrapRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, host, .. } = self;
        write!(
            f,
            "rank 0 (pid {pid} on {host}) at {}",
            self.addresses.join(", ")
        )
    }
}

const fn is_plain(c: char) -> bool {
    c.is_ascii_graphic() && c != ',' && c != '='
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(addresses: &[&str]) -> BootstrapRecord {
        let addresses = addresses.iter().map(|a| (*a).to_owned());
        BootstrapRecord::new(6, JobToken::new([7; 32]), addresses)
    }

    #[test]
    fn survives_the_trip_and_shows_no_secret() {
        let long = format!("{}:65535", "h".repeat(253));
        for addresses in [
            &["127.0.0.1:4000"][..],
            &[
                "[fe80::1]:4000",
                "10.0.0.7:4000",
                "node7.cluster.example:4000",
            ],
            &[&long, &long, &long, &long, &long],
        ] {
            let made = record(addresses);
            let text = made.encode();
            assert!(
                text.len() <= BOOTSTRAP_BYTES_MAX && !text.contains(' '),
                "{text}"
            );
            let read = BootstrapRecord::parse(format!("{text}\n\0\0").as_bytes()).unwrap();
            assert_eq!(read.addresses, made.addresses);
            assert!(!read.addresses.is_empty());
            assert_eq!((read.size, read.pid), (6, std::process::id()));
            assert_eq!(read.token.to_hex(), made.token.to_hex());
            let shown = format!("{read:?} {read}");
            assert!(!shown.contains(&made.token.to_hex()), "{shown}");
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        let good = record(&["h:1"]).encode();
        let mut bad = vec![
            String::new(),
            "x".repeat(BOOTSTRAP_BYTES_MAX + 1),
            good.replace("h:1", "h:0"),
            good.replace("h:1", "h"),
            good.replace(",6,", ",0,"),
            good.replace(",6,", ",-6,"),
            good.replace(",6,", ",999999999,"),
            good.replace("card-1", "card-2"),
            good.replace("0707", "07g7"),
            format!("{good}{}", ",h:1".repeat(BOOTSTRAP_ADDRESSES_MAX)),
        ];
        bad.extend((0..good.len()).map(|end| good[..end].to_owned()));
        for bad in bad {
            let error = BootstrapRecord::parse(bad.as_bytes()).map(|record| record.encode());
            let error = error.expect_err(&bad).to_string();
            assert!(!error.contains("0707"), "{error}");
        }
        assert!(BootstrapRecord::parse(&[0xff; 40]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_harm(bytes: Vec<u8>, at: usize, byte: u8) {
            let _ = BootstrapRecord::parse(&bytes);
            let mut changed = record(&["[fe80::1]:4000", "h:1"]).encode().into_bytes();
            let at = at % changed.len();
            changed[at] = byte;
            if let Ok(record) = BootstrapRecord::parse(&changed) {
                assert!(record.addresses.iter().all(|address| is_address(address)));
            }
        }
    }
}
