//! Limits on the use of descriptors that were passed to a client.
#![allow(unsafe_code, reason = "forks a process that goes on with its mapping")]
#![allow(
    clippy::unwrap_used,
    reason = "a test crate: its helpers panic as its tests do"
)]

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SealFlags};
use rustix::process::{Signal, WaitOptions};
use tidewater_lanes::fabric::{ClientLane, RegionTable};
use tidewater_lanes::shm::{ApplierEnd, ServerMemory, SessionMemory};
use tidewater_lanes::wake::Waker;
use tidewater_protocol::limits::RING_BYTES_MIN;
use tidewater_runtime::mem::Region;
use tidewater_runtime::mem::region::{read_only_fd, seal_for_readers};
use tidewater_runtime::sync::Arc;

const PUBLIC_BYTES: usize = 64 << 10;
const WORD: usize = 8192;
const MEMORIES: [&str; 4] = ["public", "counters", "inbox", "mailbox"];

fn server() -> Arc<ServerMemory> {
    let (public, public_fd) = Region::memfd("public", PUBLIC_BYTES).unwrap();
    let (counters, counters_fd) = Region::memfd("counters", 4096).unwrap();
    let counters = (Arc::new(counters), counters_fd);
    let server = ServerMemory::new((Arc::new(public), &public_fd), counters, 1);
    Arc::new(server.unwrap())
}

fn session(server: &Arc<ServerMemory>, salt: u64) -> SessionMemory {
    let end = ApplierEnd {
        parked_flag_at: 4096,
        waker: Waker::new().unwrap(),
    };
    SessionMemory::create(server, &[end], RING_BYTES_MIN, salt).unwrap()
}

/// Opens the descriptor again, for reading and writing.
fn reopened(fd: &OwnedFd) -> std::io::Result<File> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    File::options().read(true).write(true).open(path)
}

/// A memfd opened by its path in `/proc` gives a new descriptor with any requested access mode.
#[test]
fn memory_for_reading_cannot_be_written_through_proc() {
    let server = server();
    let session = session(&server, 7);
    server.public().words_mut(WORD, 8).unwrap().store(0, 4711);
    for (memory, is_read) in [(0, true), (1, false), (2, false), (3, true)] {
        let name = MEMORIES[memory];
        let fd = session.descriptors()[memory].try_clone_to_owned().unwrap();
        let Ok(file) = reopened(&fd) else {
            assert!(is_read, "{name} cannot be opened for writing");
            continue;
        };
        let written = file.write_at(&[0xad; 8], WORD as u64);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = rustix::fs::fallocate(&file, punch, 0, 4096);
        assert!(!is_read || written.is_err(), "{name} was written");
        assert!(
            !is_read || punched.is_err(),
            "a hole was punched into {name}"
        );
        assert!(file.set_len(0).is_err(), "{name} was cut");
        let mapped = Region::from_peer(file.into(), 4096, true);
        assert_eq!(mapped.is_err(), is_read, "{name}: {mapped:?}");
    }
    assert_eq!(server.public().words(WORD, 8).unwrap().load(0), 4711);
    // The server's own mapping can still write, and clients can still read.
    let lane = session.attach_here("server").unwrap().pop().unwrap();
    server.public().words_mut(WORD, 8).unwrap().store(0, 4712);
    let mapping = lane.mapping().unwrap();
    let word = RegionTable::new(1).add(tidewater_lanes::fabric::RegisteredRegion {
        region: Arc::clone(server.public()),
        start: 0,
        len: PUBLIC_BYTES as u64,
        rights: tidewater_lanes::fabric::AccessFlags::Read,
        memory: 0,
    });
    let words = mapping.look().unwrap().words(word.unwrap(), WORD as u64, 8);
    assert_eq!(words.unwrap().load(0), 4712);
}

/// A seal against writing on the counters or on an inbox would exclude later clients, or a recovery.
#[test]
fn one_client_cannot_seal_what_others_map() {
    let server = server();
    let first = session(&server, 7);
    first.attach_here("server").unwrap();
    for (memory, name) in MEMORIES.iter().enumerate() {
        let fd = first.descriptors()[memory].try_clone_to_owned().unwrap();
        for seal in [SealFlags::FUTURE_WRITE, SealFlags::SEAL] {
            let sealed = rustix::fs::fcntl_add_seals(&fd, seal);
            assert!(sealed.is_err(), "a client sealed {name}: {seal:?}");
        }
    }
    let next = session(&server, 8).attach_here("server");
    assert_eq!(next.unwrap().len(), 1);
    assert_eq!(first.attach_here("server").unwrap().len(), 1);
}

/// Possible successors of a server, for the ADR on seals. `F_SEAL_FUTURE_WRITE` refuses every new writable
/// mapping, through any descriptor, but `fork` inherits existing mappings. A holder therefore maps every
/// memory before it seals it, and forks its servers without exec.
#[test]
fn successor_writes_by_an_inherited_mapping_only() {
    const RUNS: u64 = 3;
    let (memory, fd) = Region::memfd("held", 8192).unwrap();
    seal_for_readers(&fd).unwrap();
    let client = Region::from_peer(read_only_fd(&fd).unwrap(), 8192, false).unwrap();
    let count = || client.words(0, 8).unwrap().load(0);
    for run in 1..=RUNS {
        let word = memory.words_mut(0, 8).unwrap();
        // SAFETY: the child calls only functions allowed after a fork of a process with threads: a load, a
        // store, `pause`. It never returns into the test.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork failed");
        if child == 0 {
            word.store(0, word.as_read().load(0) + 1);
            loop {
                // SAFETY: `pause` takes and returns no pointer.
                unsafe { libc::pause() };
            }
        }
        // The server of this run has served; it is killed, and the next one continues from its state.
        while count() < run {
            std::thread::yield_now();
        }
        let pid = rustix::process::Pid::from_raw(child).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        rustix::process::waitpid(Some(pid), WaitOptions::empty()).unwrap();
    }
    assert_eq!(count(), RUNS);
    // A program that is passed the descriptor that created the memory cannot map it writable.
    let passed = Region::from_peer(fd, 8192, true);
    assert!(passed.is_err(), "{passed:?}");
}
