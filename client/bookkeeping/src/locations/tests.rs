use std::collections::HashMap;

use tidewater_runtime::sync::AtomicBool;

use super::*;

/// The key with a hash: the inverse of [`mix64`].
fn key_of(mut hash: u64) -> u64 {
    hash ^= hash >> 31 ^ hash >> 62;
    hash = hash.wrapping_mul(0x3196_42b2_d24d_8ec3);
    hash ^= hash >> 27 ^ hash >> 54;
    hash = hash.wrapping_mul(0x96de_1b17_3f11_9089);
    hash ^ hash >> 30 ^ hash >> 60
}

/// A location that only one key has.
fn location(key: u64) -> RowLocation {
    RowLocation::new(
        (key >> 34) as u16,
        1 + (key >> 22 & 0xffd) as u16,
        (key & 0x3f_ffff) as u32,
    )
}

fn known(locations: &Locations, keys: impl Iterator<Item = u64>) -> usize {
    let right = |&key: &u64| match locations.get(key) {
        None => false,
        Some(loc) => {
            assert_eq!(loc, location(key), "key {key}");
            true
        }
    };
    keys.filter(right).count()
}

/// All keys are found, through all growths and both packings; a key takes at most 16 bytes once the table
/// is large.
#[test]
fn keys_are_found_while_it_grows() {
    const KEYS: u64 = 450_000;
    let locations = Locations::default();
    assert_eq!(locations.get(0), None);
    let mut most: f64 = 0.0;
    for key in 0..KEYS {
        locations.put(key, location(key));
        if key % 32_767 == 0 || key < 2_000 && key % 97 == 0 {
            let all = key + 1;
            assert_eq!(known(&locations, 0..all), all as usize);
            assert_eq!(known(&locations, KEYS..KEYS + 1_000), 0);
            if all > 330_000 {
                most = most.max(locations.bytes() as f64 / all as f64);
            }
        }
    }
    assert!((13.0..16.0).contains(&most), "{most} bytes a key");
    assert!(locations.budget.used() == locations.bytes());
}

/// Stores, forgets and lookups in random order, against a map.
#[test]
fn it_agrees_with_a_map() {
    let locations = Locations::default();
    let mut map = HashMap::new();
    let mut random = 7;
    for step in 0..300_000u64 {
        random = mix64(random + step);
        let key = random >> 8 & 0x1_ffff;
        match random & 7 {
            0 => {
                locations.forget(key);
                map.remove(&key);
            }
            1 => {
                let loc = RowLocation::new(9, 7, step as u32);
                locations.put(key, loc);
                map.insert(key, loc);
            }
            2..6 => {
                locations.put(key, location(key));
                map.insert(key, location(key));
            }
            _ => {}
        }
        assert_eq!(locations.get(key), map.get(&key).copied(), "step {step}");
        assert_eq!(locations.get_waiting(key), map.get(&key).copied());
    }
    assert!(map.len() > 50_000);
    assert!(
        map.iter()
            .all(|(&key, &loc)| locations.get(key) == Some(loc))
    );
}

/// Two keys with a common half of their hash are two keys: an entry is never that of another key, also
/// where reads without validation would use it. Catches `location-by-short-hash`.
#[test]
fn keys_with_close_hashes_are_apart() {
    for keys in [100, 300_000u64] {
        let locations = Locations::default();
        for n in 0..keys {
            locations.put(key_of(mix64(n)), location(n));
        }
        let first = key_of(mix64(3));
        for bit in 20..64 {
            let close = key_of(mix64(3) ^ 1 << bit);
            assert_eq!(mix64(close) ^ mix64(first), 1 << bit);
            assert_eq!(locations.get(close), None, "bit {bit} of {keys} keys");
        }
        // The bits that the place implies; in an order in which their homes are spread.
        let close = |high: u64| key_of(mix64(3) ^ (high * 2_531 % 4_096) << 52);
        for high in 1..4_096 {
            locations.put(close(high), location(high));
        }
        for high in 1..4_096 {
            assert_eq!(
                locations.get(close(high)),
                Some(location(high)),
                "{high} of {keys}"
            );
        }
        assert_eq!(locations.get(first), Some(location(3)));
    }
}

/// Without memory the cache keeps its size, keeps most of its keys, and no key gets another's location.
#[test]
fn a_budget_bounds_it() {
    let budget = Arc::new(LocationBudget::default());
    budget.set_bytes_max(2 << 20);
    let locations = Locations::new(Arc::clone(&budget));
    let other = Locations::new(Arc::clone(&budget));
    for key in 0..400_000 {
        locations.put(key, location(key));
    }
    let used = budget.used();
    assert!(used <= 2 << 20 && used > 1_900_000, "{used} bytes");
    let kept = known(&locations, 0..400_000);
    assert!(kept > 100_000, "{kept} of 400,000 keys are kept");
    // The keys stored last are there: it replaces, it does not refuse.
    let late = known(&locations, 399_000..400_000);
    assert!(late > 950, "{late} of the last 1,000");
    other.put(5, location(5));
    assert!(budget.used() <= 2 << 20);
    drop(locations);
    other.put(6, location(6));
    assert_eq!(other.get(6), Some(location(6)));
    drop(other);
    assert_eq!(budget.used(), 0);
}

/// Keys that all begin at one line cost a bounded search, and no memory without end.
#[test]
fn chosen_keys_fill_no_memory() {
    let locations = Locations::default();
    for n in 0..100_000 {
        locations.put(key_of(n), location(n));
        assert!(
            locations
                .get(key_of(n))
                .is_none_or(|loc| loc == location(n))
        );
    }
    assert_eq!(
        (0..64)
            .filter(|&n| locations.get(key_of(n)).is_some())
            .count(),
        64
    );
    assert!(locations.bytes() < 64 << 10, "{} bytes", locations.bytes());
}

/// A put moves a bounded number of entries.
#[test]
fn a_step_is_bounded() {
    let locations = Locations::default();
    let mut most = 0;
    for key in 0..300_000 {
        locations.put(key, location(key));
        most = most.max(locations.writer().moved.len());
    }
    let lines = LAST_LINES + MOVED_LINES + PROBES as u64;
    assert!(most as u64 <= lines * 5, "{most} entries");
}

/// Readers see right locations or none while writers fill, overwrite and forget; when all is still, all
/// keys are there.
#[test]
fn threads_see_right_locations() {
    const KEYS: u64 = 100_000;
    let locations = Locations::default();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for part in 0..2 {
            let (locations, done) = (&locations, &done);
            scope.spawn(move || {
                for key in (part..KEYS).step_by(2) {
                    locations.put(key, location(key));
                    if key % 7 == 0 {
                        locations.forget(key);
                        locations.put(key, location(key));
                    }
                }
                done.store(true, Ordering::Relaxed);
            });
        }
        for from in 0..2 {
            let (locations, done) = (&locations, &done);
            scope.spawn(move || {
                let mut found = 0;
                for round in 0.. {
                    found += known(locations, (from..KEYS).step_by(97));
                    if round > 3 && done.load(Ordering::Relaxed) {
                        break;
                    }
                }
                assert!(found > 0, "nothing was read");
            });
        }
    });
    assert_eq!(known(&locations, 0..KEYS), KEYS as usize);
}
