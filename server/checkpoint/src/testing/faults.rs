//! Fault injection below [`OsDisk`](crate::OsDisk): file system calls that fail, or do not return.
//! A seccomp filter hands the calls of one thread to a supervisor. For each call, that lets it
//! pass, fails it, or ends the process (seccomp user notification, Linux 5.9; no privilege).

use std::ffi::{CStr, OsStr, c_char, c_uint};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use tidewater_runtime::sync::{AtomicBool, Ordering};

/// Operation that a system call performs on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `openat` of a new file.
    Create,
    /// `openat` of an existing file.
    Open,
    /// Bytes are appended: `write`.
    Write,
    /// Bytes are read: `read` or `pread64`.
    Read,
    /// A file or directory is made durable: `fsync` or `fdatasync`.
    Sync,
    /// A file gets another name: `rename` and its newer forms.
    Rename,
    /// A name of a file is removed: `unlink` or `unlinkat`.
    Remove,
}

/// An intercepted system call. Its thread is blocked until the supervisor decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Operation of the call.
    pub kind: Kind,
    /// Path of the file that the call uses; for a rename the old path.
    pub path: PathBuf,
    /// New path of a rename; `None` for other calls.
    pub to: Option<PathBuf>,
}

/// The supervisor's decision on an intercepted call: let it pass, or make it fail with an errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel performs the call.
    Pass,
    /// The call fails with this error number.
    Fail(Errno),
}

/// System calls that the filter intercepts, and where their path or descriptor arguments are.
const CALLS: &[(libc::c_long, Arguments)] = &[
    (libc::SYS_openat, Arguments::Open { path: 1, flags: 2 }),
    (libc::SYS_write, Arguments::Descriptor(Kind::Write)),
    (libc::SYS_read, Arguments::Descriptor(Kind::Read)),
    (libc::SYS_pread64, Arguments::Descriptor(Kind::Read)),
    (libc::SYS_fsync, Arguments::Descriptor(Kind::Sync)),
    (libc::SYS_fdatasync, Arguments::Descriptor(Kind::Sync)),
    (libc::SYS_renameat, Arguments::Rename { from: 1, to: 3 }),
    (libc::SYS_renameat2, Arguments::Rename { from: 1, to: 3 }),
    (libc::SYS_unlinkat, Arguments::Remove { path: 1 }),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rename, Arguments::Rename { from: 0, to: 1 }),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_unlink, Arguments::Remove { path: 0 }),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, Arguments::Open { path: 0, flags: 1 }),
];

/// Which arguments of a system call are paths, descriptors or flags, by argument index.
#[derive(Clone, Copy)]
enum Arguments {
    Descriptor(Kind),
    Open { path: usize, flags: usize },
    Rename { from: usize, to: usize },
    Remove { path: usize },
}

/// Runs `f` on a new thread and returns its result. The calling thread supervises: `decide` is called for
/// each intercepted file system call of `f`. A panic of `f` continues in the caller.
pub fn under<T: Send>(mut decide: impl FnMut(&Call) -> Verdict, f: impl FnOnce() -> T + Send) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (give, listener) = mpsc::channel();
        let is_over = &is_over;
        let thread = scope.spawn(move || {
            give.send(install()).unwrap();
            let value = f();
            is_over.store(true, Ordering::Relaxed);
            value
        });
        let listener = listener.recv().unwrap().expect(
            "no seccomp filter with user notification: Linux 5.9 and a container that allows seccomp",
        );
        // The end of a thread makes calls too: glibc reads a file before it shrinks a heap. They have to be answered.
        let thread = scope.spawn(move || thread.join());
        while !thread.is_finished() {
            let mut fds = [PollFd::new(&listener, PollFlags::IN)];
            let wait = Duration::from_millis(20).try_into().ok();
            let ready = rustix::event::poll(&mut fds, wait.as_ref());
            if ready == Ok(0) || !fds[0].revents().contains(PollFlags::IN) {
                continue;
            }
            if let Some(notice) = receive(&listener) {
                let verdict = match is_over.load(Ordering::Relaxed) {
                    true => Verdict::Pass,
                    false => decide(&call(&notice)),
                };
                respond(&listener, notice.id, verdict);
            }
        }
        match thread.join() {
            Ok(Ok(value)) => value,
            Ok(Err(panic)) | Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Installs a seccomp filter on the calling thread, for the rest of its life. Returns the descriptor on which
/// a supervisor receives the intercepted calls.
fn install() -> io::Result<OwnedFd> {
    let statement = |code: c_uint, k: c_uint| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let load_number = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0);
    let mut program = vec![load_number];
    for (at, (number, _)) in CALLS.iter().enumerate() {
        // To the last instruction, over the comparisons that are left and the one that allows.
        let jump = libc::sock_filter {
            jt: (CALLS.len() - at) as u8,
            ..statement(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                *number as c_uint,
            )
        };
        program.push(jump);
    }
    program.push(statement(
        libc::BPF_RET | libc::BPF_K,
        libc::SECCOMP_RET_ALLOW,
    ));
    program.push(statement(
        libc::BPF_RET | libc::BPF_K,
        libc::SECCOMP_RET_USER_NOTIF,
    ));
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: sets a flag of the calling thread; takes no pointer.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `filter` and the program that it points to live until the call returns; the kernel copies
    // them.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const filter,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for this call; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Receives the next intercepted call; blocks. `None` if the kernel reports an error, as when the thread of
/// the call was interrupted.
fn receive(listener: &OwnedFd) -> Option<libc::seccomp_notif> {
    // SAFETY: all-zero bytes are a value of this struct of numbers, and the kernel wants zeroes.
    let mut notice: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the request writes one such struct, to which the pointer is exclusive.
    let done = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_RECV,
            &raw mut notice,
        )
    };
    (done == 0).then_some(notice)
}

fn respond(listener: &OwnedFd, id: u64, verdict: Verdict) {
    let (error, flags) = match verdict {
        Verdict::Pass => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        Verdict::Fail(errno) => (-errno.raw_os_error(), 0),
    };
    let mut answer = libc::seccomp_notif_resp {
        id,
        val: 0,
        error,
        flags,
    };
    // SAFETY: the request reads one such struct.
    let done = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_SEND,
            &raw mut answer,
        )
    };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

/// Decodes an intercepted call into its operation and paths. Reads the arguments from this process's memory:
/// the calling thread is blocked, so they do not change.
fn call(notice: &libc::seccomp_notif) -> Call {
    let number = libc::c_long::from(notice.data.nr);
    let (_, arguments) = CALLS.iter().find(|(known, _)| *known == number).unwrap();
    let args = notice.data.args;
    let text = |at: usize| {
        // SAFETY: a path argument that std has built: a string that ends with a zero byte, in this
        // process, borrowed by the call that waits.
        let text = unsafe { CStr::from_ptr(args[at] as usize as *const c_char) };
        PathBuf::from(OsStr::from_bytes(text.to_bytes()))
    };
    let one = |kind, path| Call {
        kind,
        path,
        to: None,
    };
    match *arguments {
        Arguments::Descriptor(kind) => {
            let link = format!("/proc/self/fd/{}", args[0] as i32);
            one(kind, fs::read_link(link).unwrap_or_default())
        }
        Arguments::Open { path, flags } if args[flags] as i32 & libc::O_CREAT != 0 => {
            one(Kind::Create, text(path))
        }
        Arguments::Open { path, .. } => one(Kind::Open, text(path)),
        Arguments::Remove { path } => one(Kind::Remove, text(path)),
        Arguments::Rename { from, to } => Call {
            kind: Kind::Rename,
            path: text(from),
            to: Some(text(to)),
        },
    }
}
