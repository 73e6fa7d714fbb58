use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tidewater_runtime::clock::Deadline;

use super::*;

/// Records registered ranges; refuses ranges of one length.
#[derive(Debug, Default)]
struct Book(Mutex<Vec<(u32, u32, u64)>>);

const REFUSED_LEN: u64 = 4096;

impl Registrar for Book {
    fn register(
        &self,
        index: u32,
        key: RegionKey,
        e: &RegisteredRegion,
    ) -> Result<(), RegistrarError> {
        if e.len == REFUSED_LEN {
            return Err("no room on the device".into());
        }
        self.0.lock().unwrap().push((index, key.0, e.start));
        Ok(())
    }
}

#[test]
fn registrars_are_told_of_every_range_before_its_key() {
    let exports = RegionTable::new(0x11);
    let region = Arc::new(Region::anonymous(1 << 16).unwrap());
    let export = |start, len| RegisteredRegion {
        region: Arc::clone(&region),
        start,
        len,
        rights: AccessFlags::Read,
        memory: 0,
    };
    let first = exports.add(export(0, 64)).unwrap();
    let book = Arc::new(Book::default());
    exports
        .attach(&(Arc::clone(&book) as Arc<dyn Registrar>))
        .unwrap();
    let refused = exports.add(export(64, REFUSED_LEN));
    assert!(
        matches!(refused, Err(ExportError::Refused { index: 1, .. })),
        "{refused:?}"
    );
    let second = exports.add(export(128, 64)).unwrap();
    assert_eq!(
        RegionTable::index_of(second),
        1,
        "a refused range takes no key"
    );
    let told = [(0, first.0, 0), (1, second.0, 128)];
    assert_eq!(*book.0.lock().unwrap(), told);
    drop(book);
    assert!(exports.add(export(0, REFUSED_LEN)).is_ok());
}

/// Reports that the registration of entry 0 has begun, and holds it until its gate opens.
#[derive(Debug)]
struct Held(Mutex<(Sender<()>, Receiver<()>)>, Book);

impl Registrar for Held {
    fn register(
        &self,
        index: u32,
        key: RegionKey,
        e: &RegisteredRegion,
    ) -> Result<(), RegistrarError> {
        if index == 0 {
            let (begun, gate) = &*self.0.lock().unwrap();
            begun.send(())?;
            gate.recv()?;
        }
        self.1.register(index, key, e)
    }
}

/// A device that registers the memory of a server takes seconds. Tables grow meanwhile, and the device gets
/// their ranges too, each once.
#[test]
fn ranges_are_added_while_others_are_registered() {
    let exports = RegionTable::new(1);
    let region = Arc::new(Region::anonymous(1 << 16).unwrap());
    let export = |start| RegisteredRegion {
        region: Arc::clone(&region),
        start,
        len: 64,
        rights: AccessFlags::Read,
        memory: 0,
    };
    exports.add(export(0)).unwrap();
    let ((begins, begun), (open, gate)) = (channel(), channel());
    let held = Arc::new(Held(Mutex::new((begins, gate)), Book::default()));
    let registrar = Arc::clone(&held) as Arc<dyn Registrar>;
    let added = std::thread::scope(|scope| {
        let attached = scope.spawn(|| exports.attach(&registrar));
        begun.recv().unwrap();
        let adder = scope.spawn(|| [64, 128].map(|start| exports.add(export(start)).is_ok()));
        let deadline = Deadline::after(Duration::from_secs(10));
        while !adder.is_finished() && !deadline.passed() {
            std::thread::yield_now();
        }
        let added = adder.is_finished();
        open.send(()).unwrap();
        attached.join().unwrap().unwrap();
        adder.join().unwrap();
        added
    });
    assert!(
        added,
        "a growing table waits for the registration of all memory"
    );
    let seen = || -> Vec<u32> {
        let mut seen: Vec<_> = held.1.0.lock().unwrap().iter().map(|&(n, ..)| n).collect();
        seen.sort_unstable();
        seen
    };
    assert_eq!(seen(), [0, 1, 2]);
    // A registrar that fails gets no more.
    let (_, gate) = channel();
    *held.0.lock().unwrap() = (channel().0, gate);
    exports.registrars().clear();
    assert!(exports.attach(&registrar).is_err());
    exports.add(export(192)).unwrap();
    assert_eq!(seen(), [0, 1, 2]);
}

/// A range that a growing table adds while a device registers the others, and that the device refuses, fails the device
/// and not the table.
#[test]
fn refused_by_a_registrar_that_is_not_ready_a_range_is_added() {
    let exports = RegionTable::new(1);
    let region = Arc::new(Region::anonymous(1 << 16).unwrap());
    let export = |len| RegisteredRegion {
        region: Arc::clone(&region),
        start: 0,
        len,
        rights: AccessFlags::Read,
        memory: 0,
    };
    exports.add(export(64)).unwrap();
    let ((begins, begun), (open, gate)) = (channel(), channel());
    let held = Held(Mutex::new((begins, gate)), Book::default());
    let registrar = Arc::new(held) as Arc<dyn Registrar>;
    std::thread::scope(|scope| {
        let attached = scope.spawn(|| exports.attach(&registrar));
        begun.recv().unwrap();
        let added = exports.add(export(REFUSED_LEN));
        open.send(()).unwrap();
        assert_eq!(RegionTable::index_of(added.unwrap()), 1);
        let failed = attached.join().unwrap();
        assert!(
            matches!(failed, Err(ExportError::Refused { index: 1, .. })),
            "{failed:?}"
        );
    });
    assert!(exports.add(export(REFUSED_LEN)).is_ok(), "it gets no more");
}

#[test]
fn only_registered_ranges_with_the_right_pass() {
    let exports = Arc::new(RegionTable::new(0x5a));
    let mut view = exports.view();
    let region = Arc::new(Region::anonymous(1 << 16).unwrap());
    let export = |rights, memory| RegisteredRegion {
        region: Arc::clone(&region),
        start: 4096,
        len: 8192,
        rights,
        memory,
    };
    let read = exports.add(export(AccessFlags::Read, 0)).unwrap();
    let count = exports.add(export(AccessFlags::Atomic, 1)).unwrap();
    assert!(view.check(read, 4096, 8192, AccessFlags::Read).is_ok());
    assert!(view.check(count, 4096, 8, AccessFlags::Atomic).is_ok());
    let mut checks = view.reads();
    for (key, memory) in [(read, 0), (read, 0), (count, 1), (read, 0)] {
        assert_eq!(checks.check(key, 4096, 8).map(|e| e.memory), Ok(memory));
    }
    assert_eq!(RegionTable::memory_of(count), 1);
    for (key, addr, len, want) in [
        (read, 4095, 8, AccessFlags::Read),
        (read, 4096, 8193, AccessFlags::Read),
        (read, u64::MAX - 7, 16, AccessFlags::Read),
        (read, 4097, 8, AccessFlags::Read),
        (read, 4096, 8, AccessFlags::Write),
        (read, 4096, 8, AccessFlags::Atomic),
        (RegionKey(read.0 + 2), 4096, 8, AccessFlags::Read),
        (RegionKey(read.0 ^ 1 << 21), 4096, 8, AccessFlags::Read),
        (RegionKey(read.0 | 1 << 28), 4096, 8, AccessFlags::Read),
    ] {
        assert!(
            view.check(key, addr, len, want).is_err(),
            "{key:?} {addr} {len} {want:?}"
        );
        // In a list the result is the same, whatever was looked up before.
        let mut checks = view.reads();
        assert!(checks.check(read, 4096, 8).is_ok());
        let listed = want != AccessFlags::Read || checks.check(key, addr, len).is_err();
        assert!(listed, "{key:?} {addr} {len} in a list");
    }
}
