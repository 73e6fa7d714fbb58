//! Sources of the job token: the system's random bytes, or a file that only its owner can read.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use tidewater_protocol::limits::TOKEN_FILE_BYTES_MAX;
use tidewater_protocol::wire::handshake::JobToken;

/// Reason why the job token cannot be read or created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The operating system has no random bytes.
    #[error("no random bytes for a job token: {0}. Check that /dev/urandom exists")]
    Random(getrandom::Error),
    /// The file cannot be opened or read.
    #[error(
        "cannot read the job token from {origin}: {source}. \
         Set TIDEWATER_TOKEN_FILE to the file that the launcher or your site made"
    )]
    Unreadable {
        /// File or descriptor of the token.
        origin: String,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The path names a directory, pipe or device.
    #[error("{origin} is not a regular file; put the job token (64 hex digits) into one")]
    NotAFile {
        /// File or descriptor of the token.
        origin: String,
    },
    /// Others than its owner may read or write it, or it belongs to another user.
    #[error(
        "the job token in {origin} is not private (mode {mode:04o}, owner {owner}): \
         anyone who reads it can join the job. Run `chmod 600` on it, as its owner, \
         and make a new token"
    )]
    Exposed {
        /// File or descriptor of the token.
        origin: String,
        /// Permission bits of the file.
        mode: u32,
        /// User id of its owner.
        owner: u32,
    },
    /// It does not hold 64 hex digits. The content is a secret and is not quoted.
    #[error("{origin} holds {bytes} bytes that are not a job token; write 64 hex digits into it")]
    Malformed {
        /// File or descriptor of the token.
        origin: String,
        /// Bytes found, at most one more than are read.
        bytes: usize,
    },
}

/// Creates a random job token from the system's random source.
///
/// # Errors
/// The system has no random bytes.
pub fn random() -> Result<JobToken, TokenError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(TokenError::Random)?;
    Ok(JobToken::new(bytes))
}

/// Reads the job token from a file that only its owner can access.
///
/// # Errors
/// The file cannot be read, is not a private regular file, or holds no token.
///
/// # Cost
/// Four system calls; never waits, for any path.
pub fn read_file(path: &Path) -> Result<JobToken, TokenError> {
    read(path, format!("{}", path.display()))
}

/// Reads the job token from the inherited descriptor `fd`. Its offset does not move, so that other processes
/// that share it read the same.
///
/// # Errors
/// As [`read_file`].
pub fn read_descriptor(fd: u32) -> Result<JobToken, TokenError> {
    let path = PathBuf::from(format!("/proc/self/fd/{fd}"));
    read(&path, format!("descriptor {fd} (TIDEWATER_TOKEN_FD)"))
}

fn read(path: &Path, origin: String) -> Result<JobToken, TokenError> {
    let text = read_private(path, &origin, TOKEN_FILE_BYTES_MAX)?;
    let token = std::str::from_utf8(&text).ok().and_then(JobToken::from_hex);
    token.ok_or(TokenError::Malformed {
        origin,
        bytes: text.len(),
    })
}

/// Reads at most `limit` bytes of a regular file that only its owner, this user or root, can access. `origin`
/// names the file in errors.
pub(crate) fn read_private(path: &Path, origin: &str, limit: u64) -> Result<Vec<u8>, TokenError> {
    let origin = origin.to_owned();
    let unreadable = |source| TokenError::Unreadable {
        origin: origin.clone(),
        source,
    };
    // NONBLOCK: opening a FIFO without a writer would wait for ever.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| unreadable(e.into()))?;
    let file = File::from(fd);
    let found = file.metadata().map_err(unreadable)?;
    if !found.is_file() {
        return Err(TokenError::NotAFile { origin });
    }
    let (mode, owner) = (found.mode() & 0o7777, found.uid());
    let mine = owner == rustix::process::geteuid().as_raw() || owner == 0;
    if mode & 0o077 != 0 || !mine {
        return Err(TokenError::Exposed {
            origin,
            mode,
            owner,
        });
    }
    let mut text = Vec::new();
    file.take(limit)
        .read_to_end(&mut text)
        .map_err(unreadable)?;
    Ok(text)
}
