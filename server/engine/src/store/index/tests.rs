//! The index against a hash map, its growth with and without a helper, and its memory afterwards.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use tidewater_protocol::ids::Incarnation;
use tidewater_runtime::clock::Deadline;

use super::super::memory::BlockKind;
use super::*;

fn index_in(memory: &Arc<ServerMemory>, part: u32) -> Index {
    index_with(memory, Preallocator::none(), part)
}

fn index_with(memory: &Arc<ServerMemory>, preallocator: Preallocator, part: u32) -> Index {
    let owner = BlockOwner {
        kind: BlockKind::Index,
        table: 1,
        applier: 0,
        part,
    };
    Index::new(Arc::clone(memory), preallocator, owner).unwrap()
}

fn memory() -> Arc<ServerMemory> {
    Arc::new(ServerMemory::new(64 << 20, Incarnation(1)).unwrap())
}

fn index() -> Index {
    index_in(&memory(), 0)
}

/// Keys of slots in tests that give key `n` the slot `n + 1`.
fn key_of(slot: u32) -> u64 {
    u64::from(slot) - 1
}

fn insert(index: &mut Index, key: u64) {
    index.insert(key, key as u32 + 1, key_of).unwrap();
}

fn get(index: &Index, key: u64) -> Option<u64> {
    index.get(key, key_of).map(key_of)
}

/// Page faults of this thread so far.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let after_name = stat.rsplit(") ").next().unwrap();
    after_name.split(' ').nth(7).unwrap().parse().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn agrees_with_a_hash_map(
        ops in proptest::collection::vec((proptest::bool::weighted(0.2), 0u64..4_000), 0..6_000),
        spread in prop_oneof![Just(1u32), Just(700_000)],
    ) {
        let mut index = index();
        let mut model = HashMap::new();
        // Slots far apart, so that tags become narrower on the way.
        let number = |n: usize| n as u32 * spread + 1;
        let mut slots = vec![0; ops.len()];
        for (n, (remove, key)) in ops.into_iter().enumerate() {
            let key = key << 56 | key;
            slots[n] = key;
            let keys = |slot: u32| slots[((slot - 1) / spread) as usize];
            if remove {
                prop_assert_eq!(index.remove(key, keys), model.remove(&key));
            } else if let std::collections::hash_map::Entry::Vacant(slot) = model.entry(key) {
                index.insert(key, number(n), keys).unwrap();
                slot.insert(number(n));
            }
            prop_assert_eq!(index.len(), model.len());
        }
        let keys = |slot: u32| slots[((slot - 1) / spread) as usize];
        for key in (0..4_000u64).map(|k| k << 56 | k) {
            prop_assert_eq!(index.get(key, keys), model.get(&key).copied());
        }
    }
}

#[test]
fn every_key_is_found_while_it_grows() {
    let mut index = index();
    for key in 0..100_000u64 {
        insert(&mut index, key);
        let probe = key / 2;
        assert_eq!(get(&index, probe), Some(probe), "{probe} at {key}");
    }
    assert_eq!(get(&index, 100_000), None);
}

/// All indexes of a table double at about the same time; a fresh page costs as much as many
/// inserts.
#[test]
fn index_with_room_takes_its_keys_without_growth_and_grows_later() {
    let memory = memory();
    let owner = index_in(&memory, 0).owner;
    for keys in [0u64, 1, 700, 100_000] {
        let room = (keys as usize, keys as u32);
        let preallocator = Preallocator::none();
        let mut index = Index::with_room(Arc::clone(&memory), preallocator, owner, room).unwrap();
        let buckets = index.buckets();
        let mut all: Vec<u64> = (0..keys).collect();
        all.sort_unstable_by_key(|key| Index::order_of(*key));
        for key in &all {
            assert!(index.add_new(*key, *key as u32 + 1, key_of));
        }
        assert_eq!((index.len(), index.buckets()), (keys as usize, buckets));
        for key in all {
            assert!(!index.add_new(key, key as u32 + 1, key_of), "{key} twice");
        }
        (keys..2 * keys + 2_000).for_each(|key| insert(&mut index, key));
        for key in 0..2 * keys + 2_000 {
            assert_eq!(get(&index, key), Some(key));
        }
        assert_eq!(index.len() as u64, 2 * keys + 2_000);
        index.release().unwrap();
    }
}

#[test]
#[should_panic(expected = "the room was too small")]
fn index_takes_no_key_beyond_its_room() {
    let memory = memory();
    let owner = index_in(&memory, 0).owner;
    let room = (10, 5_000);
    let mut index = Index::with_room(memory, Preallocator::none(), owner, room).unwrap();
    for key in 0..FIRST_BUCKETS as u64 {
        assert!(index.add_new(key, key as u32 + 1, key_of));
    }
}

#[test]
fn fresh_pages_come_evenly_also_when_all_indexes_double() {
    const INDEXES: u64 = 16;
    const BATCH: u64 = 256;
    let memory = memory();
    let mut indexes: Vec<Index> = (0..INDEXES as u32).map(|p| index_in(&memory, p)).collect();
    let (mut most, mut all) = (0, 0);
    for first in (0..INDEXES * 20_000).step_by(BATCH as usize) {
        let before = faults();
        for key in first..first + BATCH {
            insert(&mut indexes[(key % INDEXES) as usize], key);
        }
        let came = faults() - before;
        all += came;
        // At first each index has only a few pages.
        if first > INDEXES * 1_000 {
            most = most.max(came);
        }
    }
    assert!(all > 500, "only {all} fresh pages: nothing tested");
    // 80 bytes an insert are a page in 51.
    let share = BATCH / 51;
    assert!(most <= 4 * share, "{most} fresh pages in {BATCH} inserts");
}

/// With a helper that keeps up, inserts meet no fresh pages but those of small tables.
#[test]
fn the_helper_makes_the_tables() {
    const KEYS: u64 = 200_000;
    let memory = memory();
    let mut index = index_with(&memory, Preallocator::start().unwrap(), 0);
    let (mut ordered, mut is_known, before) = (0, false, faults());
    for key in 0..KEYS {
        insert(&mut index, key);
        let Growth::Ordered(order) = &index.growth else {
            is_known = false;
            continue;
        };
        ordered += usize::from(!is_known);
        is_known = true;
        while !order.is_done() {
            std::thread::yield_now();
        }
    }
    let came = faults() - before;
    assert!(ordered > 5, "{ordered} orders: nothing tested");
    assert!(came < 100, "{came} fresh pages");
    assert!((0..KEYS).all(|key| get(&index, key).is_some()));
}

/// An index waits for a late helper until there is little room, and then makes the table itself.
#[test]
fn a_late_helper_is_done_without() {
    let memory = memory();
    let helper = Preallocator::start().unwrap();
    let (open, gate) = crossbeam_channel::bounded::<()>(0);
    let busy = helper.order::<Table>(&memory, Urgency::Soon, move |_, _| {
        let _ = gate.recv();
        Err(StoreError::Limit {
            what: "patience",
            have: 1,
            limit: 0,
        })
    });
    let mut index = index_with(&memory, helper.clone(), 0);
    let mut fullest = 0;
    for key in 0..100_000u64 {
        insert(&mut index, key);
        fullest = fullest.max(index.len * 1_000 / index.table.buckets);
        assert_eq!(get(&index, key), Some(key));
    }
    assert!((920..=938).contains(&fullest), "{fullest}/1000 full");
    index.release().unwrap();
    // A table that comes after all, and is not needed any more, is freed.
    drop(open);
    drop(busy);
    let all_free = || {
        let blocks = memory.private.directory().unwrap();
        blocks
            .iter()
            .all(|(_, [kind, ..])| *kind == BlockKind::Free as u32)
    };
    while !all_free() {
        std::thread::yield_now();
    }
    drop(helper);
}

#[test]
fn outgrown_tables_are_used_again() {
    let memory = memory();
    let grown = |part| {
        let before = memory.private.usage().0;
        let mut index = index_in(&memory, part);
        for key in 0..50_000u64 {
            insert(&mut index, key);
        }
        // Earlier content is not taken for a key.
        assert!((50_000..60_000).all(|key| get(&index, key).is_none()));
        (index, memory.private.usage().0 - before)
    };
    let (first, fresh) = grown(0);
    let (second, more) = grown(1);
    // All but the present table and its predecessor.
    assert!(more < fresh, "{fresh} bytes, then {more}");
    first.release().unwrap();
    second.release().unwrap();
    let (_third, more) = grown(2);
    assert_eq!(more, 0);
}

/// The helper returns the pages of outgrown tables: what stays resident is the present table, small
/// ones, and at most the one that is being moved or returned.
#[test]
fn pages_of_outgrown_tables_are_returned() {
    let memory = memory();
    let sectors = || rustix::fs::fstat(memory.private.fd()).unwrap().st_blocks as usize;
    let before = sectors();
    let mut index = index_with(&memory, Preallocator::start().unwrap(), 0);
    for key in 0..1_000_000 {
        insert(&mut index, key);
    }
    let deadline = Deadline::after(Duration::from_secs(30));
    let limit = 14 * index.len();
    while (sectors() - before) * 512 > limit && !deadline.passed() {
        std::thread::yield_now();
    }
    let bytes = (sectors() - before) * 512;
    assert!(
        bytes <= limit,
        "{bytes} bytes resident, the limit is {limit}"
    );
    let blocks = memory.private.directory().unwrap();
    let outgrown = blocks.iter().filter(|(block, [kind, ..])| {
        *kind == BlockKind::Free as u32 && block.len >= ORDERED_BYTES
    });
    assert!(outgrown.count() > 5, "nothing tested");
    index.release().unwrap();
}
