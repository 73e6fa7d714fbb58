//! Maps the region keys of a lane to the rkeys of the peer's device.
//!
//! The first use of a key reads its cell in the server's directory by one READ; from then on it costs
//! an array access. A cell with a wrong checksum, or of another key, belongs to a key that this start
//! of the server never issued (F09).

use super::memory::Target;
use tidewater_lanes::fabric::{INBOX_KEY, RegionTable, RemoteAddr};
use tidewater_protocol::ids::RegionKey;
use tidewater_protocol::layout::directory::{KEY_CELL_BYTES, KeyCell, key_cell_at};

/// Known keys of a lane's server.
#[derive(Debug)]
pub(super) struct Keys {
    inbox_rkey: u32,
    directory: Target,
    cells: u32,
    salt: u64,
    /// By number of the region; as long as the highest number seen.
    known: Vec<Option<KeyCell>>,
}

/// Error for a key that the server does not have.
pub(super) const UNKNOWN: &str = "unknown key";

impl Keys {
    /// Starts with a directory of `cells` cells, salted with `salt`, that begins at `directory`.
    pub(super) const fn new(inbox_rkey: u32, directory: Target, cells: u32, salt: u64) -> Self {
        Self {
            inbox_rkey,
            directory,
            cells,
            salt,
            known: Vec::new(),
        }
    }

    /// Returns the device's address of `at`, if its key is known here.
    #[inline]
    pub(super) fn target(&self, at: RemoteAddr) -> Option<Target> {
        let rkey = if at.key == INBOX_KEY {
            self.inbox_rkey
        } else {
            let cell = (*self.known.get(RegionTable::index_of(at.key) as usize)?)?;
            if cell.key != at.key {
                return None;
            }
            cell.rkey
        };
        Some(Target {
            rkey,
            address: at.addr,
        })
    }

    /// Returns the start of the directory, and its length in bytes.
    pub(super) const fn directory(&self) -> (Target, usize) {
        (self.directory, self.cells as usize * KEY_CELL_BYTES)
    }

    /// Returns the cell in which to look up a key.
    pub(super) fn cell(&self, key: RegionKey) -> Result<Target, &'static str> {
        let index = RegionTable::index_of(key);
        if index >= self.cells {
            return Err(UNKNOWN);
        }
        Ok(Target {
            rkey: self.directory.rkey,
            address: self.directory.address + key_cell_at(index) as u64,
        })
    }

    /// Stores the contents of the key's cell.
    pub(super) fn learn(
        &mut self,
        key: RegionKey,
        bytes: &[u8; KEY_CELL_BYTES],
    ) -> Result<(), &'static str> {
        let index = RegionTable::index_of(key);
        let cell = KeyCell::from_bytes(bytes, self.salt, index).filter(|cell| cell.key == key);
        let Some(cell) = cell.filter(|_| index < self.cells) else {
            return Err(UNKNOWN);
        };
        let index = index as usize;
        if self.known.len() <= index {
            self.known.resize(index + 1, None);
        }
        self.known[index] = Some(cell);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: u64 = 77;

    #[test]
    fn a_key_is_looked_up_once_and_only_if_its_cell_names_it() {
        let directory = Target {
            rkey: 5,
            address: 0x1000,
        };
        let mut keys = Keys::new(9, directory, 4, SALT);
        let key = RegionKey(0x05a0_0002);
        let cell = KeyCell { key, rkey: 0x77 };
        let at = RemoteAddr { key, addr: 24 };
        assert_eq!(keys.target(at), None);
        let asked = keys.cell(key).unwrap();
        assert_eq!((asked.rkey, asked.address), (5, 0x1000 + 2 * 32));
        keys.learn(key, &cell.to_bytes(SALT, 2)).unwrap();
        let target = keys.target(at).unwrap();
        assert_eq!((target.rkey, target.address), (0x77, 24));

        let other_start = RegionKey(0x05b0_0002);
        let stale = RemoteAddr {
            key: other_start,
            addr: 24,
        };
        assert_eq!(keys.target(stale), None, "not the key that is known");
        assert_eq!(
            keys.learn(other_start, &cell.to_bytes(SALT, 2)),
            Err(UNKNOWN)
        );
        assert_eq!(keys.learn(key, &[0; KEY_CELL_BYTES]), Err(UNKNOWN));
        assert!(keys.target(at).is_some(), "what was known stays");
        assert_eq!(keys.cell(RegionKey(4)), Err(UNKNOWN), "past the directory");

        let inbox = RemoteAddr {
            key: INBOX_KEY,
            addr: 64,
        };
        assert_eq!(
            keys.target(inbox).map(|t| (t.rkey, t.address)),
            Some((9, 64))
        );
    }
}
