//! The token as a file that has no name in any file system.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, Mode, SealFlags};
use tidewater_launch::token;

use super::error::LaunchError;

/// A new token in a sealed memfd of mode 0600, which exists as long as this value.
#[derive(Debug)]
pub(super) struct TokenFile {
    file: File,
}

impl TokenFile {
    /// Draws a new token and stores it.
    pub(super) fn create() -> Result<Self, LaunchError> {
        let text = token::random()?.to_hex();
        Self::holding(&text).map_err(LaunchError::system("hold the job token"))
    }

    /// Stores a token, as hex digits.
    pub(super) fn holding(text: &str) -> io::Result<Self> {
        let file = sealed(text.as_bytes())?;
        Ok(Self { file })
    }

    /// Reads the token, as hex digits.
    pub(super) fn read(&self) -> io::Result<String> {
        let mut text = String::new();
        let mut file = File::open(self.path())?;
        file.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Path by which processes of this user open it while this process lives.
    pub(super) fn path(&self) -> PathBuf {
        let (pid, fd) = (std::process::id(), self.file.as_raw_fd());
        PathBuf::from(format!("/proc/{pid}/fd/{fd}"))
    }
}

/// Stores `text` in a file that no process can change.
fn sealed(text: &[u8]) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("tidewater-token", flags)?;
    rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
    let mut file = File::from(fd);
    file.write_all(text)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_private_readable_by_path_and_read_only() {
        let file = TokenFile::create().unwrap();
        let read = |path: PathBuf| token::read_file(&path).map(|token| token.to_hex());
        let first = read(file.path()).unwrap();
        assert_eq!(first.len(), 64);
        let again = File::options().write(true).open(file.path());
        let written = again.and_then(|mut file| file.write_all(b"0"));
        assert!(written.is_err(), "sealed");
        assert_eq!(read(file.path()).unwrap(), first);
        let other = TokenFile::create().unwrap();
        assert_ne!(read(other.path()).unwrap(), first);
        let path = other.path();
        drop(other);
        assert!(read(path).is_err(), "vanishes with its owner");
    }
}
