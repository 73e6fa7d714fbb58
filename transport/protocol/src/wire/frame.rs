//! Control framing: a 16-byte header, then the body.
//!
//! ```text
//! +0   u32 magic = 'TWC1'
//! +4   u32 len     bytes of the body
//! +8   u16 kind    see [`kind`]
//! +10  u16 flags   reserved, zero
//! +12  u32 check   FNV-1a of header[0..12], then of the body
//! +16  body
//! ```
//! All numbers are little-endian. This header never changes between versions. The check detects
//! accidents, not forgery: each FNV-1a step is a bijection of the state. It therefore detects every
//! change of a single byte, and others with probability 1 - 2^-32. The handshake detects forgery.

use super::WireError;
use crate::limits::{CONTROL_BYTES_MAX, UNAUTHENTICATED_BYTES_MAX};

/// Bytes of a control frame's header, before the body.
pub const HEADER_BYTES: usize = 16;
/// Magic number at the start of a control frame, the bytes `TWC1` in memory order.
pub const MAGIC: u32 = u32::from_le_bytes(*b"TWC1");

/// Kinds of a frame's body. 1 to 15 are the handshake's and never change.
pub mod kind {
    /// Frame kind of a [`crate::wire::hello::Hello`], the client's first message on every connection.
    pub const HELLO: u16 = 1;
    /// Frame kind of a [`crate::wire::hello::Challenge`], the server's answer to a hello.
    pub const CHALLENGE: u16 = 2;
    /// Frame kind of a [`crate::wire::hello::Proof`], the client's answer to a challenge.
    pub const PROOF: u16 = 3;
    /// Frame kind of a [`crate::wire::hello::Welcome`], which ends a successful handshake.
    pub const WELCOME: u16 = 4;
    /// Frame kind of a [`crate::wire::hello::Refused`], which ends a failed handshake.
    pub const REFUSED: u16 = 5;
    /// Frame kind of a [`crate::wire::control::CoordinatorRequest`].
    pub const COORDINATOR_REQUEST: u16 = 16;
    /// Frame kind of a [`crate::wire::control::CoordinatorAnswer`].
    pub const COORDINATOR_ANSWER: u16 = 17;
    /// Frame kind of a [`crate::wire::control::Command`] of the coordinator to a server.
    pub const ORDER: u16 = 18;
    /// Frame kind of a server's [`crate::wire::control::CommandReply`].
    pub const ORDER_ANSWER: u16 = 19;
    /// Frame kind of a client's [`crate::wire::control::ServerRequest`].
    pub const SERVER_REQUEST: u16 = 20;
    /// Frame kind of a server's [`crate::wire::control::ServerAnswer`] to a client.
    pub const SERVER_ANSWER: u16 = 21;
    /// Frame kind of a [`crate::wire::control::Notice`], which has no answer.
    pub const NOTICE: u16 = 22;
}

/// One complete received control frame with a valid header and check. It borrows the decoder's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    kind: u16,
    bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Returns the kind of the body as the peer sent it. The decoder does not check that it is a constant of
    /// [`kind`].
    pub const fn kind(&self) -> u16 {
        self.kind
    }

    /// Returns the bytes of the body, without the header.
    pub fn body(&self) -> &'a [u8] {
        self.bytes.get(HEADER_BYTES..).unwrap_or_default()
    }

    /// Returns header and body together as received, which the handshake's HMACs cover.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// Continues a 32-bit FNV-1a hash from `state` over `bytes`.
fn fnv1a(state: u32, bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(state, |h, &b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

const FNV_START: u32 = 0x811c_9dc5;

/// Appends a control frame of kind `kind` to `out`: the header, and the body that `write` appends. On an error `out` is
/// unchanged.
///
/// # Errors
/// Those of `write`; [`WireError::Limit`] if the body is over [`CONTROL_BYTES_MAX`].
pub fn append_with(
    out: &mut Vec<u8>,
    kind: u16,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), WireError>,
) -> Result<(), WireError> {
    let start = out.len();
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&[0; HEADER_BYTES - 4]);
    let written = write(out).and_then(|()| {
        let len = out.len() - start - HEADER_BYTES;
        super::error::at_most(
            "control message bytes",
            len as u64,
            CONTROL_BYTES_MAX as u64,
        )?;
        Ok(len as u32)
    });
    let len = match written {
        Ok(len) => len,
        Err(error) => {
            out.truncate(start);
            return Err(error);
        }
    };
    let frame = &mut out[start..];
    frame[4..8].copy_from_slice(&len.to_le_bytes());
    frame[8..10].copy_from_slice(&kind.to_le_bytes());
    let check = fnv1a(fnv1a(FNV_START, &frame[..12]), &frame[HEADER_BYTES..]);
    frame[12..16].copy_from_slice(&check.to_le_bytes());
    Ok(())
}

/// Appends a control frame of kind `kind` with the given body to `out`. On an error `out` is unchanged.
///
/// # Errors
/// [`WireError::Limit`] if the body is over [`CONTROL_BYTES_MAX`].
pub fn append(out: &mut Vec<u8>, kind: u16, body: &[u8]) -> Result<(), WireError> {
    append_with(out, kind, |out| {
        out.extend_from_slice(body);
        Ok(())
    })
}

/// Incremental decoder that splits a received byte stream into control frames.
///
/// # Invariants
/// It never holds more bytes than one header and the largest body that it accepts. It reserves memory only for
/// bytes that have arrived, whatever a header claims. After an error it stays in error: a stream with a lost
/// position is of no more use.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Number of bytes at the start of `buffer` that were returned as frames.
    taken: usize,
    body_bytes_max: usize,
    failed: Option<WireError>,
}

impl Decoder {
    /// Returns an empty decoder for an unauthenticated peer: it accepts bodies of at most
    /// [`UNAUTHENTICATED_BYTES_MAX`] bytes.
    pub const fn unauthenticated() -> Self {
        Self {
            buffer: Vec::new(),
            taken: 0,
            body_bytes_max: UNAUTHENTICATED_BYTES_MAX,
            failed: None,
        }
    }

    /// Raises the limit of a body from that of an unauthenticated peer to [`CONTROL_BYTES_MAX`] bytes. The caller has
    /// authenticated the peer by the handshake.
    pub const fn trust(&mut self) {
        self.body_bytes_max = CONTROL_BYTES_MAX;
    }

    /// Copies as many received bytes as fit into the buffer, and returns their number. If fewer than given fit, even
    /// 0, call [`Self::next_frame`] until it returns `None`, then push the rest.
    #[must_use = "bytes that were not taken must be pushed again"]
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        if self.taken > 0 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        let take = bytes.len().min(self.room());
        self.buffer.extend_from_slice(&bytes[..take]);
        take
    }

    /// Returns the next complete frame in the buffer; `None` until more bytes are pushed.
    ///
    /// # Errors
    /// The stream is not one of frames, or a frame is over the limit or damaged. Final: each further call returns the
    /// same error, and the caller closes the connection.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, WireError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        match split(&self.buffer[self.taken..], self.body_bytes_max) {
            Ok(Some(frame)) => {
                self.taken += frame.bytes.len();
                Ok(Some(frame))
            }
            Ok(None) => Ok(None),
            Err(error) => {
                self.failed = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Whether [`Self::next_frame`] would return a frame or an error now.
    pub fn is_ready(&self) -> bool {
        self.failed.is_some()
            || !matches!(
                split(&self.buffer[self.taken..], self.body_bytes_max),
                Ok(None)
            )
    }

    /// Returns the number of bytes that the next [`Self::push`] accepts at most.
    pub const fn room(&self) -> usize {
        (HEADER_BYTES + self.body_bytes_max).saturating_sub(self.buffered())
    }

    /// Returns the number of bytes that the next frame lacks: those of its header while that is incomplete, then
    /// those of its body; 0 if the frame is complete. A caller that reads no more than these takes nothing of what
    /// follows the frame. The length in the header is not checked here.
    pub fn missing(&self) -> usize {
        let head = &self.buffer[self.taken..];
        let frame_bytes = match u32_at(head, 4) {
            Some(len) if head.len() >= HEADER_BYTES => HEADER_BYTES.saturating_add(len as usize),
            _ => HEADER_BYTES,
        };
        frame_bytes.saturating_sub(head.len())
    }

    /// Returns the number of bytes in the buffer that no returned frame has consumed.
    pub const fn buffered(&self) -> usize {
        self.buffer.len() - self.taken
    }

    /// Consumes the decoder and returns the buffered bytes after the last returned frame. They belong to the protocol
    /// that follows on the connection.
    pub fn into_rest(mut self) -> Vec<u8> {
        self.buffer.drain(..self.taken);
        self.buffer
    }
}

/// Returns the frame at the start of `bytes`; `None` if more bytes are needed. A wrong magic is an error after 4
/// bytes, and set flags or a body over `body_bytes_max` after the header, before the rest of the frame arrives.
fn split(bytes: &[u8], body_bytes_max: usize) -> Result<Option<Frame<'_>>, WireError> {
    let Some(magic) = u32_at(bytes, 0) else {
        return Ok(None);
    };
    if magic != MAGIC {
        return Err(WireError::Magic {
            found: magic,
            expected: MAGIC,
        });
    }
    let (Some(len), Some(kind_flags), Some(found)) =
        (u32_at(bytes, 4), u32_at(bytes, 8), u32_at(bytes, 12))
    else {
        return Ok(None);
    };
    let kind = (kind_flags & 0xffff) as u16;
    let flags = kind_flags >> 16;
    if flags != 0 {
        return Err(WireError::Reserved {
            what: "control frame",
            bits: u64::from(flags),
        });
    }
    let len = len as usize;
    super::error::at_most("control frame bytes", len as u64, body_bytes_max as u64)?;
    let Some(bytes) = bytes.get(..HEADER_BYTES + len) else {
        return Ok(None);
    };
    let computed = fnv1a(fnv1a(FNV_START, &bytes[..12]), &bytes[HEADER_BYTES..]);
    if computed != found {
        return Err(WireError::Check {
            kind,
            found,
            computed,
        });
    }
    Ok(Some(Frame { kind, bytes }))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|b| u32::from_le_bytes(*b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn check_is_fnv1a() {
        // Test vectors of the FNV authors.
        assert_eq!(fnv1a(FNV_START, b""), 0x811c_9dc5);
        assert_eq!(fnv1a(FNV_START, b"a"), 0xe40c_292c);
        assert_eq!(fnv1a(FNV_START, b"foobar"), 0xbf9c_f968);
    }

    #[test]
    fn golden_header() {
        let mut out = Vec::new();
        append(&mut out, 7, b"abc").unwrap();
        assert_eq!(out[..12], *b"TWC1\x03\0\0\0\x07\0\0\0");
        assert_eq!(out[16..], *b"abc");
        let check = fnv1a(FNV_START, b"TWC1\x03\0\0\0\x07\0\0\0abc");
        assert_eq!(out[12..16], check.to_le_bytes());
    }

    fn drain(decoder: &mut Decoder, bytes: &[u8]) -> Result<Vec<(u16, Vec<u8>)>, WireError> {
        let mut rest = bytes;
        let mut frames = Vec::new();
        loop {
            let taken = decoder.push(rest);
            rest = &rest[taken..];
            while let Some(frame) = decoder.next_frame()? {
                frames.push((frame.kind(), frame.body().to_vec()));
            }
            if rest.is_empty() {
                return Ok(frames);
            }
        }
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_frames(
            bodies in prop::collection::vec((any::<u16>(), prop::collection::vec(any::<u8>(), 0..64)), 0..8),
            cuts in prop::collection::vec(1_usize..40, 1..40),
        ) {
            let mut bytes = Vec::new();
            for (kind, body) in &bodies {
                append(&mut bytes, *kind, body).unwrap();
            }
            let mut decoder = Decoder::unauthenticated();
            let mut got = Vec::new();
            let mut rest = &bytes[..];
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                got.extend(drain(&mut decoder, now).unwrap());
                rest = later;
            }
            prop_assert_eq!(got, bodies);
            prop_assert_eq!(decoder.buffered(), 0);
        }
    }

    #[test]
    fn every_flipped_bit_is_refused_and_the_error_is_final() {
        let mut bytes = Vec::new();
        append(&mut bytes, 3, b"some body").unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // A longer `len` waits for more; the bytes that follow must not complete it.
            bad.extend_from_slice(&[0; UNAUTHENTICATED_BYTES_MAX]);
            let mut decoder = Decoder::unauthenticated();
            let error = drain(&mut decoder, &bad).unwrap_err();
            assert_eq!(decoder.next_frame(), Err(error), "bit {bit}");
        }
    }

    #[test]
    fn memory_is_bounded_by_the_limit_not_by_the_header() {
        let mut decoder = Decoder::unauthenticated();
        let mut header = MAGIC.to_le_bytes().to_vec();
        header.extend_from_slice(&u32::MAX.to_le_bytes());
        header.extend_from_slice(&[0; 8]);
        assert_eq!(decoder.push(&header), 16);
        assert_eq!(
            decoder.next_frame(),
            Err(WireError::Limit {
                what: "control frame bytes",
                value: u64::from(u32::MAX),
                max: UNAUTHENTICATED_BYTES_MAX as u64
            })
        );
        let mut decoder = Decoder::unauthenticated();
        assert_eq!(
            decoder.push(&vec![0; 1 << 20]),
            HEADER_BYTES + UNAUTHENTICATED_BYTES_MAX
        );
    }

    #[test]
    fn trust_raises_the_limit() {
        let mut bytes = Vec::new();
        append(&mut bytes, 3, &vec![7; CONTROL_BYTES_MAX]).unwrap();
        assert!(drain(&mut Decoder::unauthenticated(), &bytes).is_err());
        let mut decoder = Decoder::unauthenticated();
        decoder.trust();
        assert_eq!(
            drain(&mut decoder, &bytes).unwrap()[0].1.len(),
            CONTROL_BYTES_MAX
        );
        let before = bytes.clone();
        assert!(append(&mut bytes, 3, &vec![7; CONTROL_BYTES_MAX + 1]).is_err());
        assert_eq!(bytes, before);
    }

    #[test]
    fn a_strangers_first_bytes_are_enough_to_part() {
        let mut decoder = Decoder::unauthenticated();
        assert_eq!(decoder.push(b"GET "), 4);
        assert!(matches!(decoder.next_frame(), Err(WireError::Magic { .. })));
    }
}
