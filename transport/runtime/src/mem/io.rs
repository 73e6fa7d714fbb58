//! The only module in which the kernel reads and writes shared memory: sockets send straight from
//! registered memory and receive straight into it.
//!
//! A list names the pieces of one call, private slices and spans of regions mixed, on the stack. To the
//! language the kernel is an opaque agent: it copies bytes that may be changing, and the reader refuses
//! torn data. A list never names memory outside a region or a slice that it borrows.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};

use super::{MemError, Region};

/// Maximum parts (address and length) of one scatter/gather call: enough for a window of large reads, 2
/// KiB of stack.
pub const PARTS: usize = 128;

const NOTHING: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

/// An `iovec` array on the stack, common to [`SendList`] and [`RecvList`].
///
/// # Invariants
/// Each of the first `used` parts is inside memory that stays borrowed for `'a`.
struct Parts<'a> {
    list: [libc::iovec; PARTS],
    used: usize,
    bytes: usize,
    borrows: PhantomData<&'a [u8]>,
}

impl Default for Parts<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl Parts<'_> {
    const fn new() -> Self {
        Self {
            list: [NOTHING; PARTS],
            used: 0,
            bytes: 0,
            borrows: PhantomData,
        }
    }

    /// Appends a part of `len` bytes, which the caller has checked to be inside its memory. Returns
    /// false, without a change, when all [`PARTS`] are used. Appends nothing for 0 bytes.
    fn push(&mut self, first: *mut u8, len: usize) -> bool {
        if len == 0 {
            return true;
        }
        let Some(part) = self.list.get_mut(self.used) else {
            return false;
        };
        *part = libc::iovec {
            iov_base: first.cast(),
            iov_len: len,
        };
        self.used += 1;
        self.bytes += len;
        true
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: all fields of a msghdr are integers or pointers, for which zero is a value: no address,
        // no control data, no flags.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.list.as_mut_ptr();
        // The field is size_t or int, by the C library; PARTS fits both.
        message.msg_iovlen = self.used as _;
        message
    }
}

/// Gather list of one `sendmsg` call: private slices and spans of shared regions, at most [`PARTS`].
#[derive(Default)]
pub struct SendList<'a>(Parts<'a>);

impl<'a> SendList<'a> {
    /// Creates an empty gather list.
    pub const fn new() -> Self {
        Self(Parts::new())
    }

    /// Appends a private slice. Returns false, without a change, when the list is full.
    pub fn bytes(&mut self, bytes: &'a [u8]) -> bool {
        self.0.push(bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// Appends `len` bytes of a shared region from byte offset `at` on, which need not be aligned.
    /// Returns false, without a change, when the list is full.
    ///
    /// # Errors
    /// [`MemError::Bounds`] when they are not inside the region.
    pub fn span(&mut self, region: &'a Region, at: usize, len: usize) -> Result<bool, MemError> {
        Ok(self.0.push(first_byte(region, at, len)?, len))
    }

    /// Returns the number of bytes in all parts together.
    pub const fn total_bytes(&self) -> usize {
        self.0.bytes
    }

    /// Sends the listed bytes with one `sendmsg` call and returns the number of bytes that the socket
    /// took, perhaps fewer. The list keeps its parts: the caller builds another one for the rest. Never
    /// blocks, never raises SIGPIPE. With `more` (`MSG_MORE`) the kernel may hold the last packet back
    /// until the next call, for 200 ms at most.
    ///
    /// # Errors
    /// Those of the socket; `WouldBlock` when it takes nothing now. No byte is then sent.
    pub fn send(&mut self, socket: impl AsFd, more: bool) -> io::Result<usize> {
        let fd = socket.as_fd().as_raw_fd();
        let message = self.0.message();
        let more = if more { libc::MSG_MORE } else { 0 };
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | more;
        // SAFETY:
        // - Each of `msg_iovlen` parts is inside memory borrowed for 'a (invariant of `Parts`), and
        //   the list of parts outlives the call.
        // - The kernel only reads them; being an opaque agent it may see bytes that change.
        count_of(unsafe { libc::sendmsg(fd, &raw const message, flags) })
    }
}

/// A private destination buffer of which a [`RecvList`] may name several pieces, even overlapping ones.
pub struct Place<'a> {
    first: *mut u8,
    len: usize,
    borrows: PhantomData<&'a mut [u8]>,
}

impl<'a> Place<'a> {
    /// Borrows a buffer exclusively for as long as the lists that name pieces of it.
    pub const fn new(bytes: &'a mut [u8]) -> Self {
        Self {
            first: bytes.as_mut_ptr(),
            len: bytes.len(),
            borrows: PhantomData,
        }
    }
}

/// Scatter list of one `recvmsg` call: pieces of private buffers and spans of shared regions, at most
/// [`PARTS`].
#[derive(Default)]
pub struct RecvList<'a>(Parts<'a>);

impl<'a> RecvList<'a> {
    /// Creates an empty scatter list.
    pub const fn new() -> Self {
        Self(Parts::new())
    }

    /// Appends the `len` bytes at byte offset `at` of a private buffer. Returns false, without a change,
    /// when the list is full or the piece is not inside.
    pub fn piece(&mut self, place: &Place<'a>, at: usize, len: usize) -> bool {
        match at.checked_add(len) {
            Some(end) if end <= place.len => self.0.push(place.first.wrapping_add(at), len),
            _ => false,
        }
    }

    /// Appends `len` bytes of a shared region from byte offset `at` on, which need not be aligned. This
    /// thread must be their only writer. Returns false, without a change, when the list is full.
    ///
    /// # Errors
    /// [`MemError::Bounds`] when they are not inside the region or the region is read-only.
    pub fn span(&mut self, region: &'a Region, at: usize, len: usize) -> Result<bool, MemError> {
        region.words_mut(at / 8 * 8, 0)?;
        Ok(self.0.push(first_byte(region, at, len)?, len))
    }

    /// Returns the number of bytes in all parts together.
    pub const fn total_bytes(&self) -> usize {
        self.0.bytes
    }

    /// Receives available bytes into the parts, in order, with one `recvmsg` call, and returns their
    /// number, perhaps fewer than the parts hold: the remaining bytes of the parts are unchanged. 0
    /// means that the peer has closed the connection, unless the list is empty. Never blocks.
    ///
    /// # Errors
    /// Those of the socket; `WouldBlock` when nothing has arrived.
    pub fn recv(&mut self, socket: impl AsFd) -> io::Result<usize> {
        let fd = socket.as_fd().as_raw_fd();
        let mut message = self.0.message();
        // In a region the kernel is an opaque agent, like a peer that writes.
        // SAFETY: each of `msg_iovlen` parts is inside memory borrowed for 'a (invariant of `Parts`),
        // and their list outlives the call. Private parts are borrowed exclusively; a region's bytes
        // are looked at through atomics only, and any byte is a value.
        count_of(unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT) })
    }
}

/// Returns the address of byte offset `at` of a region, after a check that `len` bytes from there are
/// inside. `at` need not be aligned. Outside is [`MemError::Bounds`].
fn first_byte(region: &Region, at: usize, len: usize) -> Result<*mut u8, MemError> {
    let start = at / 8 * 8;
    region.check(start, len.saturating_add(at - start))?;
    Ok(region.base().wrapping_add(at))
}

/// Converts the result of a C call: the byte count, or `errno` as an error when it is negative.
fn count_of(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn recv_all(list: &mut RecvList<'_>, socket: &TcpStream) -> usize {
        loop {
            match list.recv(socket) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                other => return other.unwrap(),
            }
        }
    }

    #[test]
    fn regions_and_slices_mix_in_both_directions() {
        let (near, far) = sockets();
        let from = Region::anonymous(4096).unwrap();
        let into = Region::anonymous(4096).unwrap();
        from.words_mut(64, 16)
            .unwrap()
            .copy_in(0, b"0123456789abcdef");
        let mut list = SendList::new();
        assert!(list.bytes(b"head"));
        assert!(list.span(&from, 67, 9).unwrap());
        assert_eq!(
            (list.total_bytes(), list.send(&near, false).unwrap()),
            (13, 13)
        );
        let mut scratch = [0; 8];
        let place = Place::new(&mut scratch);
        let mut list = RecvList::new();
        assert!(list.piece(&place, 2, 4));
        assert!(list.span(&into, 129, 9).unwrap());
        assert_eq!((list.total_bytes(), recv_all(&mut list, &far)), (13, 13));
        assert_eq!(&scratch, b"\0\0head\0\0");
        let mut landed = [0; 16];
        into.words(128, 16).unwrap().copy_out(0, &mut landed);
        assert_eq!(&landed[..11], b"\x003456789ab\0");
    }

    #[test]
    fn nothing_outside_is_named_and_full_lists_say_so() {
        let region = Region::anonymous(4096).unwrap();
        let mut send = SendList::new();
        let mut recv = RecvList::new();
        for (at, len) in [(4096, 1), (4090, 7), (usize::MAX, 2), (1, usize::MAX)] {
            assert!(send.span(&region, at, len).is_err(), "{at} {len}");
            assert!(recv.span(&region, at, len).is_err(), "{at} {len}");
        }
        let mut scratch = [0; 8];
        let place = Place::new(&mut scratch);
        assert!(!recv.piece(&place, 4, 5) && !recv.piece(&place, usize::MAX, 2));
        for _ in 0..PARTS {
            assert!(recv.piece(&place, 0, 8) && send.bytes(b"x"));
        }
        assert!(!recv.piece(&place, 0, 8) && !send.bytes(b"x"));
        assert_eq!((recv.total_bytes(), send.total_bytes()), (8 * PARTS, PARTS));
    }

    #[test]
    fn a_read_only_mapping_is_not_received_into() {
        let (_rw, fd) = Region::memfd("io", 4096).unwrap();
        let fd = super::super::region::read_only_fd(&fd).unwrap();
        let ro = Region::from_peer(fd, 4096, false).unwrap();
        assert!(RecvList::new().span(&ro, 0, 8).is_err());
        assert!(SendList::new().span(&ro, 0, 8).is_ok());
    }

    #[test]
    fn a_closed_peer_is_an_error_not_a_signal() {
        let (near, far) = sockets();
        drop(far);
        let broken = (0..1000).find_map(|_| {
            std::thread::yield_now();
            let mut list = SendList::new();
            list.bytes(b"x");
            list.send(&near, false).err()
        });
        assert!(broken.is_some());
    }
}
