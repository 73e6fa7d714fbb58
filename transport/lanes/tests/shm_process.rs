//! Shared memory between two processes, and against peers that violate the protocol.
//!
//! The second process is this test binary again, in the role that `TIDEWATER_TEST_ROLE` names. Its end of
//! the control connection is its standard input.
#![allow(clippy::unwrap_used)] // helpers of tests, which the lint does not recognise as tests

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use proptest::prelude::*;
use rustix::fs::MemfdFlags;
use tidewater_lanes::fabric::{
    ClientLane, INBOX_KEY, LaneError, ReadDest, ReadOp, RegionTable, RemoteAddr, SPIN, ServerLane,
};
use tidewater_lanes::shm::pass::{self, Descriptors, PassError};
use tidewater_lanes::shm::{
    ApplierEnd, ServerMemory, SessionMemory, ShmAttach, ShmError, attach, descriptors,
};
use tidewater_lanes::wake::{OsParker, Waker};
use tidewater_protocol::ids::RegionKey;
use tidewater_protocol::layout::line_bytes;
use tidewater_protocol::layout::lines::{CheckedU64, StateLine};
use tidewater_protocol::layout::session::{INBOX_RING_AT, INBOX_TAIL_AT, MAILBOX_STATE_AT};
use tidewater_protocol::limits::{DESCRIPTORS_MAX, RING_BYTES_MIN};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::Arc;
use tidewater_runtime::wait::wait_until;

const CHECK: u8 = 7;
const SALT: u64 = 99;
const FRAMES: u64 = 200;
const PUBLIC_BYTES: usize = 64 << 10;
const DOZE_AT: usize = 4096;
const ROLE: &str = "TIDEWATER_TEST_ROLE";

/// Lock of the tests in this file, which count descriptors: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

fn memory() -> (Arc<ServerMemory>, OsParker) {
    let (public, public_fd) = Region::memfd("public", PUBLIC_BYTES).unwrap();
    let (counters, counters_fd) = Region::memfd("counters", 4096).unwrap();
    public.words_mut(64, 8).unwrap().store(0, 4711);
    let public = Arc::new(public);
    let mut parker = OsParker::new(SPIN).unwrap();
    parker.add_parked_flag(Arc::clone(&public), DOZE_AT);
    let counters = (Arc::new(counters), counters_fd);
    let server = ServerMemory::new((public, public_fd), counters, CHECK).unwrap();
    (Arc::new(server), parker)
}

fn session(server: &Arc<ServerMemory>, parker: &OsParker) -> SessionMemory {
    let end = ApplierEnd {
        parked_flag_at: DOZE_AT as u64,
        waker: parker.waker().clone(),
    };
    SessionMemory::create(server, &[end], RING_BYTES_MIN, SALT).unwrap()
}

/// Sends one message: length, body; descriptors are attached to the first byte.
fn tell(stream: &UnixStream, body: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut message = (body.len() as u32).to_le_bytes().to_vec();
    message.extend(body);
    assert_eq!(pass::send(stream, &message, fds).unwrap(), message.len());
}

fn hear(stream: &UnixStream, held: &mut Descriptors) -> Result<Vec<u8>, PassError> {
    let mut exact = |len: usize| {
        let (mut bytes, mut at) = (vec![0; len], 0);
        while at < len {
            match pass::receive(stream, &mut bytes[at..], held)? {
                0 => return Ok(Vec::new()),
                n => at += n,
            }
        }
        Ok(bytes)
    };
    let head: Vec<u8> = exact(4)?;
    exact(head.try_into().map(u32::from_le_bytes).unwrap_or(0) as usize)
}

/// Not a test: the second process of the tests below.
#[test]
#[ignore = "started by the other tests as their second process"]
fn second_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let stdin = std::io::stdin();
    let stream = UnixStream::from(stdin.as_fd().try_clone_to_owned().unwrap());
    match role.as_str() {
        "server" => serve(&stream),
        name => match pass::connect(name, soon()) {
            Err(PassError::OtherUser { .. }) => {}
            other => panic!("a server of another user was accepted: {other:?}"),
        },
    }
}

fn start(role: &str, stdin: impl Into<Stdio>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "second_process", "--nocapture"]);
    command.env(ROLE, role).stdin(stdin).stdout(Stdio::null());
    command
}

/// The server's process: an applier that acknowledges frames.
fn serve(stream: &UnixStream) {
    let (memory, mut parker) = memory();
    let session = session(&memory, &parker);
    let mut held = Descriptors::default();
    assert_eq!(hear(stream, &mut held).unwrap(), b"waker");
    let waker = Waker::from_peer(held.take(1).unwrap().remove(0)).unwrap();
    let numbers = postcard::to_stdvec(&session.numbers()).unwrap();
    tell(stream, &numbers, &session.descriptors());
    let mut port = session.port(0, "client", &waker).unwrap();
    let inbox = session.inbox(0).unwrap();
    for n in 1..=FRAMES {
        let look = || Ok::<_, LaneError>(inbox.tail().filter(|t| *t >= n * 64));
        wait_until(&mut parker, soon(), look)
            .unwrap()
            .expect("no frame came");
        assert_eq!(inbox.header((n - 1) * 64), [n; 8]);
        let state = StateLine {
            applied_seq: n,
            ..StateLine::default()
        };
        port.post(MAILBOX_STATE_AT, &line_bytes(&state.to_line(SALT)))
            .unwrap();
        port.signal().unwrap();
    }
    assert_eq!(
        memory.counters().words(8, 8).unwrap().load_acquire(0),
        FRAMES
    );
}

#[test]
fn two_processes_read_write_count_and_wake_each_other() {
    let _alone = alone();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut child: Child = start("server", OwnedFd::from(theirs)).spawn().unwrap();
    let mut parker = OsParker::new(SPIN).unwrap();
    tell(&ours, b"waker", &[parker.waker().as_fd()]);
    let mut held = Descriptors::default();
    let told: ShmAttach = postcard::from_bytes(&hear(&ours, &mut held).unwrap()).unwrap();
    let fds = held.take(descriptors(&told)).unwrap();
    for fd in &fds {
        let flags = rustix::io::fcntl_getfd(fd).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
    let mut lane = attach(&told, fds, "server 0").unwrap().remove(0);
    let (region, at) = lane.parked_flag();
    parker.add_parked_flag(region, at);
    let of = |memory: u32, addr| RemoteAddr {
        key: RegionKey(memory << 28 | u32::from(CHECK) << 20),
        addr,
    };
    let inbox = |at: usize| RemoteAddr {
        key: INBOX_KEY,
        addr: at as u64,
    };
    assert_eq!(RegionTable::memory_of(of(1, 0).key), 1);
    for n in 1..=FRAMES {
        let place = INBOX_RING_AT + ((n as usize - 1) * 64) % RING_BYTES_MIN;
        lane.write(inbox(place), &line_bytes(&[n; 8])).unwrap();
        assert_eq!(lane.fetch_add(of(1, 8), 1, soon()).unwrap(), n - 1);
        let CheckedU64(tail) = CheckedU64::new(n * 64, SALT);
        let tail: Vec<u8> = tail.iter().flat_map(|w| w.to_le_bytes()).collect();
        lane.write_signal(inbox(INBOX_TAIL_AT), &tail).unwrap();
        let applied = wait_until(&mut parker, soon(), || {
            let line = StateLine::from_line(&lane.mailbox().line(MAILBOX_STATE_AT), SALT);
            Ok::<_, LaneError>(line.filter(|l| l.applied_seq >= n))
        });
        assert!(applied.unwrap().is_some(), "frame {n} was not acknowledged");
    }
    let mut body = [0; 8];
    let op = ReadOp {
        from: of(0, 64),
        len: 8,
        head_len: 0,
        head_at: 0,
        body_at: 0,
        fence: false,
    };
    let dest = ReadDest {
        head: &mut [],
        body: &mut body,
    };
    // The server may have ended already: its memory is still there, and its lane is marked closed.
    let read = lane.read(&[op], dest, soon());
    assert!(child.wait().unwrap().success());
    match read {
        Ok(()) => assert_eq!(u64::from_le_bytes(body), 4711),
        Err(e) => assert!(matches!(e, LaneError::Broken { .. }), "{e}"),
    }
    assert_eq!(
        hear(&ours, &mut held).unwrap(),
        b"",
        "the control connection tells of the end"
    );
    assert!(
        matches!(lane.poll(), Err(LaneError::Broken { .. })),
        "the port was dropped"
    );
}

#[test]
fn a_server_of_another_user_is_refused_and_so_is_its_client() {
    use std::os::unix::process::CommandExt;
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can start a process of another user");
        return;
    }
    let name = format!("tidewater-test-users-{}", std::process::id());
    let listener = pass::listen(&name).unwrap();
    listener.set_nonblocking(false).unwrap();
    let child = start(&name, Stdio::null()).uid(65_534).gid(65_534).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(e) => {
            println!("skipped: another user cannot run this test binary: {e}");
            return;
        }
    };
    let (stream, _) = listener.accept().unwrap();
    let refused = pass::same_user(&stream);
    assert!(
        matches!(refused, Err(PassError::OtherUser { peer: 65_534, .. })),
        "{refused:?}"
    );
    assert!(
        child.wait().unwrap().success(),
        "the client took a server of another user"
    );
}

#[test]
fn names_connect_processes_of_one_user() {
    let _alone = alone();
    let name = format!("tidewater-test-names-{}", std::process::id());
    let nobody = pass::connect(&name, soon());
    assert!(matches!(nobody, Err(PassError::Os { .. })), "{nobody:?}");
    let listener = pass::listen(&name).unwrap();
    assert!(
        matches!(pass::listen(&name), Err(PassError::Os { .. })),
        "the name was taken twice"
    );
    let ours = pass::connect(&name, soon()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    pass::same_user(&theirs).unwrap();
    tell(&ours, b"hello", &[]);
    assert_eq!(
        hear(&theirs, &mut Descriptors::default()).unwrap(),
        b"hello"
    );
    ours.set_nonblocking(true).unwrap();
    let nothing = pass::receive(&ours, &mut [0; 8], &mut Descriptors::default());
    assert!(nothing.unwrap_err().would_block());
}

#[test]
fn connecting_to_a_listener_that_does_not_accept_ends_at_the_deadline() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    let _alone = alone();
    let name = format!("tidewater-test-full-{}", std::process::id());
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let mut queued = Vec::new();
    let error = loop {
        match pass::connect(&name, Deadline::after(Duration::from_millis(20))) {
            Ok(stream) => queued.push(stream),
            Err(e) => break e,
        }
        assert!(queued.len() < 100, "the queue is endless");
    };
    assert!(matches!(error, PassError::Deadline { .. }), "{error}");
}

#[test]
fn descriptors_beyond_the_limit_are_closed_and_told() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let _alone = alone();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let before = open_descriptors();
    let flood = |count: usize| {
        let fds = vec![theirs.as_fd(); count];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let iov = [std::io::IoSlice::new(b"x")];
        rustix::net::sendmsg(&theirs, &iov, &mut control, SendFlags::empty()).unwrap();
    };
    let mut held = Descriptors::default();
    let mut byte = [0; 8];
    // One message with too many, one just above the limit, and many with few.
    for count in [253, DESCRIPTORS_MAX + 1] {
        flood(count);
        let error = pass::receive(&ours, &mut byte, &mut held).unwrap_err();
        assert!(
            matches!(error, PassError::TooMany { .. }),
            "{count}: {error}"
        );
        assert_eq!(open_descriptors(), before, "{count} descriptors leak");
    }
    flood(DESCRIPTORS_MAX);
    assert_eq!(pass::receive(&ours, &mut byte, &mut held).unwrap(), 1);
    assert_eq!(held.len(), DESCRIPTORS_MAX);
    flood(1);
    assert!(pass::receive(&ours, &mut byte, &mut held).is_err());
    assert_eq!(open_descriptors(), before, "held descriptors leak");
    let too_many = vec![ours.as_fd(); DESCRIPTORS_MAX + 1];
    assert!(matches!(
        pass::send(&ours, b"x", &too_many),
        Err(PassError::TooMany { .. })
    ));
    // Fewer than the message announces.
    flood(3);
    pass::receive(&ours, &mut byte, &mut held).unwrap();
    assert!(matches!(
        held.take(5),
        Err(PassError::Count {
            expected: 5,
            got: 3
        })
    ));
    assert_eq!(open_descriptors(), before, "miscounted descriptors leak");
}

/// Numbers and descriptors of the own session, for the tests to corrupt.
struct Bait {
    told: ShmAttach,
    fds: Vec<OwnedFd>,
}

fn bait() -> Bait {
    let (memory, parker) = memory();
    let session = session(&memory, &parker);
    let fds = session
        .descriptors()
        .iter()
        .map(|fd| fd.try_clone_to_owned().unwrap())
        .collect();
    Bait {
        told: session.numbers(),
        fds,
    }
}

fn unsealed(bytes: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    fd
}

#[test]
fn descriptors_that_are_not_what_they_should_be_are_refused() {
    let _alone = alone();
    let before = open_descriptors();
    let refuse = |what: &str, spoil: &dyn Fn(&mut Bait)| {
        let mut bait = bait();
        spoil(&mut bait);
        let error = attach(&bait.told, bait.fds, "hostile")
            .map(drop)
            .unwrap_err();
        assert_eq!(open_descriptors(), before, "{what}: descriptors leak");
        (what.to_owned(), error)
    };
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    for memory in 0..4 {
        for (what, error) in [
            refuse("no memfd", &|b| b.fds[memory] = null()),
            refuse("unsealed", &|b| b.fds[memory] = unsealed(1 << 24)),
            refuse("short", &|b| {
                b.fds[memory] = Region::memfd("short", 64).unwrap().1
            }),
            refuse("a waker", &|b| b.fds.swap(memory, 4)),
        ] {
            assert!(
                matches!(error, ShmError::Memory { .. }),
                "{what} at {memory}: {error}"
            );
        }
    }
    let (what, error) = refuse("pipe as waker", &|b| {
        b.fds[4] = rustix::pipe::pipe().unwrap().1
    });
    assert!(matches!(error, ShmError::Waker(_)), "{what}: {error}");
    // Memory passed for reading cannot be mapped for writing.
    let (what, error) = refuse("read-only inbox", &|b| b.fds.swap(2, 3));
    assert!(matches!(error, ShmError::Memory { .. }), "{what}: {error}");
    for (what, error) in [
        refuse("none", &|b| b.fds.clear()),
        refuse("one missing", &|b| drop(b.fds.pop())),
        refuse("one more", &|b| b.fds.push(null())),
    ] {
        assert!(
            matches!(error, ShmError::Descriptors { .. }),
            "{what}: {error}"
        );
    }
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    let _alone = alone();
    type Spoil = fn(&mut ShmAttach);
    let spoils: &[(&str, Spoil)] = &[
        ("no lanes", |t| t.parked_flag_at.clear()),
        ("too many lanes", |t| t.parked_flag_at = vec![0; 65]),
        ("no ring", |t| t.ring_bytes = 0),
        ("odd ring", |t| t.ring_bytes = (RING_BYTES_MIN + 64) as u64),
        ("huge ring", |t| t.ring_bytes = 1 << 63),
        ("larger ring", |t| t.ring_bytes *= 2),
        ("no public memory", |t| t.public_bytes = 0),
        ("more public memory", |t| t.public_bytes += 1),
        ("all public memory", |t| t.public_bytes = u64::MAX),
        ("more counters", |t| t.counters_bytes = 1 << 40),
        ("other mailbox", |t| t.mailbox_bytes -= 64),
        ("parked flag past the end", |t| {
            t.parked_flag_at[0] = t.public_bytes
        }),
        ("parked flag across the end", |t| {
            t.parked_flag_at[0] = t.public_bytes - 4
        }),
        ("parked flag misaligned", |t| t.parked_flag_at[0] = 4),
        ("parked flag nowhere", |t| t.parked_flag_at[0] = u64::MAX),
    ];
    for (what, spoil) in spoils {
        let mut bait = bait();
        spoil(&mut bait.told);
        assert!(attach(&bait.told, bait.fds, "hostile").is_err(), "{what}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// For any numbers, attaching returns lanes or an error.
    #[test]
    fn attaching_is_total(
        key_check in any::<u8>(),
        public_bytes in prop_oneof![Just(PUBLIC_BYTES as u64), any::<u64>()],
        counters_bytes in prop_oneof![Just(4096u64), any::<u64>()],
        ring_bytes in prop_oneof![Just(RING_BYTES_MIN as u64), any::<u64>()],
        parked_flag_at in prop_oneof![0..PUBLIC_BYTES as u64, any::<u64>()],
    ) {
        let _alone = alone();
        let Bait { told, fds } = bait();
        let spoiled = ShmAttach {
            key_check, public_bytes, counters_bytes, ring_bytes, parked_flag_at: vec![parked_flag_at], ..told
        };
        match attach(&spoiled, fds, "hostile") {
            Ok(lanes) => prop_assert_eq!(lanes.len(), 1),
            Err(e) => prop_assert!(!e.to_string().is_empty()),
        }
    }
}
