//! Description of a table's share for clients: the location of its memory and its salts.

use tidewater_protocol::ids::ApplierId;
use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::limits::EXTENTS_MAX;
use tidewater_protocol::wire::control::{ApplierPart, PartitionDescriptor, Remote};

use super::table::{Store, Table};
use crate::store::dense_blocks::DenseBlocks;

impl Table {
    /// Describes this applier's part of the table to clients: region keys, addresses and lengths in bytes,
    /// and the salt of its checksums.
    pub fn describe(&self, applier: ApplierId) -> ApplierPart {
        match &self.store {
            Store::Sparse(s) => {
                let (address, key) = s.extents().table_addr();
                let extents = Remote {
                    key,
                    address,
                    len: (EXTENTS_MAX * LINE_BYTES) as u64,
                };
                let salt = s.extents().table_salt();
                ApplierPart {
                    applier,
                    salt,
                    extents: Some(extents),
                    partitions: Vec::new(),
                }
            }
            Store::Rows(r) => {
                let stride = r.layout().stride as u64;
                let partitions = r.partitions().map(|p| PartitionDescriptor {
                    partition: p.partition,
                    first: p.first_row,
                    count: p.rows,
                    payload: Remote {
                        key: p.key,
                        address: p.addr,
                        len: p.rows * stride,
                    },
                    payload_back: None,
                    versions: None,
                    snapshot: None,
                });
                let partitions = partitions.collect();
                ApplierPart {
                    applier,
                    salt: r.salt(),
                    extents: None,
                    partitions,
                }
            }
            Store::Blocks(b) => blocks(b, applier),
        }
    }
}

fn blocks(b: &DenseBlocks, applier: ApplierId) -> ApplierPart {
    let block = b.layout().block_bytes as u64;
    let partitions = b.partitions().map(|p| {
        let payload = |first: usize, buffers: usize| Remote {
            key: p.payload_key,
            address: p.payload[first],
            len: p.blocks * block * buffers as u64,
        };
        let meta = |address, len| Remote {
            key: p.meta_key,
            address,
            len,
        };
        PartitionDescriptor {
            partition: p.partition,
            first: p.first_block,
            count: p.blocks,
            payload: payload(0, 1),
            payload_back: p.snapshot.map(|_| payload(1, p.buffers - 1)),
            versions: Some(meta(p.versions, p.blocks * 8)),
            snapshot: p.snapshot.map(|at| meta(at, LINE_BYTES as u64)),
        }
    });
    let partitions = partitions.collect();
    ApplierPart {
        applier,
        salt: b.salt(),
        extents: None,
        partitions,
    }
}
