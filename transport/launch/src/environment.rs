//! The environment that detection reads: variables, working directory, flags.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

use super::place::Rendezvous;
use tidewater_protocol::limits::{LAUNCH_TEXT_BYTES_MAX, LAUNCHED_MAX};

/// Reason why the environment of a process does not determine its place in a launch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DetectError {
    /// A variable or flag has an impossible value.
    #[error("{name}={value:?} is not valid: {expected}. Correct it, or unset it")]
    Invalid {
        /// Name of the variable or flag.
        name: String,
        /// Value of the variable, shortened.
        value: String,
        /// Description of a valid value.
        expected: String,
    },
    /// The launcher does not give enough values.
    #[error("{source_name} started this process, but {missing}. {remedy}")]
    Incomplete {
        /// Name of the launcher.
        source_name: &'static str,
        /// Values that are not known.
        missing: String,
        /// Remedy, for the message.
        remedy: String,
    },
    /// The launch has other processes, but no rendezvous with them.
    #[error(
        "this is process {rank} of {size} of {source_name}, and there is no way to meet the others: \
         {why}. Give --rendezvous DIRECTORY (or TIDEWATER_RENDEZVOUS), a directory that all of them \
         see, the same for all and new for each job"
    )]
    NoRendezvous {
        /// Name of the launcher.
        source_name: &'static str,
        /// Rank of the process.
        rank: u32,
        /// Number of processes of the launch.
        size: u32,
        /// Reason why the launcher has no way of its own.
        why: &'static str,
    },
}

/// Values of the command-line flags `--rank`, `--size` and `--rendezvous`; they win over every variable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Explicit {
    /// Value of the flag `--rank`.
    pub rank: Option<u32>,
    /// Value of the flag `--size`.
    pub size: Option<u32>,
    /// Value of the flag `--rendezvous`: `pmi`, a path, or `HOST:PORT`.
    pub rendezvous: Option<String>,
}

/// Environment that [`detect()`](super::detect()) evaluates: variables, working directory, open sockets and
/// flags. Tests replace each.
pub struct LaunchEnv<'a> {
    vars: Vec<(String, OsString)>,
    /// The working directory, for the default rendezvous.
    pub directory: PathBuf,
    /// Whether a descriptor of this process is an open socket.
    pub is_socket: &'a dyn Fn(u32) -> bool,
    /// Values from the command line.
    pub explicit: Explicit,
}

impl fmt::Debug for LaunchEnv<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchEnv")
            .field("vars", &self.vars.len())
            .field("directory", &self.directory)
            .field("explicit", &self.explicit)
            .finish_non_exhaustive()
    }
}

impl<'a> LaunchEnv<'a> {
    /// Builds the environment from given values. An empty variable counts as unset. `is_socket` reports whether
    /// a descriptor of this process is an open socket.
    pub fn new(
        vars: impl IntoIterator<Item = (OsString, OsString)>,
        directory: PathBuf,
        is_socket: &'a dyn Fn(u32) -> bool,
        explicit: Explicit,
    ) -> Self {
        let named = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value));
        let vars = vars.into_iter().filter(|(_, value)| !value.is_empty());
        Self {
            vars: vars.filter_map(named).collect(),
            directory,
            is_socket,
            explicit,
        }
    }

    /// Builds the environment from the variables and the working directory of this process.
    ///
    /// # Errors
    /// It has no working directory.
    pub fn here(explicit: Explicit) -> std::io::Result<Self> {
        Self::of(std::env::vars_os(), explicit)
    }

    /// Builds the environment from given variables, and the working directory and descriptors of this process.
    ///
    /// # Errors
    /// It has no working directory.
    pub fn of(
        vars: impl IntoIterator<Item = (OsString, OsString)>,
        explicit: Explicit,
    ) -> std::io::Result<Self> {
        let directory = std::env::current_dir()?;
        Ok(Self::new(vars, directory, &is_open_socket, explicit))
    }

    /// Returns a variable's value; `None` if it is unset, not UTF-8, or over [`LAUNCH_TEXT_BYTES_MAX`] bytes.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let (_, value) = self.vars.iter().find(|(known, _)| known == name)?;
        let text = value.to_str()?;
        (text.len() <= LAUNCH_TEXT_BYTES_MAX).then_some(text)
    }

    pub(super) fn raw(&self, name: &str) -> Option<&OsStr> {
        let (_, value) = self.vars.iter().find(|(known, _)| known == name)?;
        Some(value)
    }

    /// Returns a variable's value as a number from 0 to `max`; `None` if it is unset, an error if it is no such
    /// number.
    pub(super) fn number(&self, name: &str, max: u32) -> Result<Option<u32>, DetectError> {
        if self.raw(name).is_none() {
            return Ok(None);
        }
        let text = self.text(name).unwrap_or("?");
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(number) if digits && number <= max => Ok(Some(number)),
            _ => Err(invalid(name, text, format!("a number up to {max}"))),
        }
    }

    /// Returns a variable's value as a rank below `size`; `None` if it is unset.
    pub(super) fn rank(&self, name: &str, size: u32) -> Result<Option<u32>, DetectError> {
        self.number(name, size.saturating_sub(1))
    }

    /// Returns a variable's value as a number of processes, at least 1; `None` if it is unset.
    pub(super) fn count(&self, name: &str) -> Result<Option<u32>, DetectError> {
        match self.number(name, LAUNCHED_MAX)? {
            Some(0) => Err(invalid(
                name,
                "0",
                format!("a number from 1 to {LAUNCHED_MAX}"),
            )),
            count => Ok(count),
        }
    }

    /// Returns the variables of `names` that are set, with values shortened to 80 characters, for messages.
    pub(super) fn seen(&self, names: &[&str]) -> Vec<(String, String)> {
        let shown = |name: &&str| {
            let value = self.raw(name)?.to_string_lossy().into_owned();
            Some(((*name).to_owned(), value.chars().take(80).collect()))
        };
        names.iter().filter_map(shown).collect()
    }

    /// Returns the rendezvous that the user selected by flag or by `TIDEWATER_RENDEZVOUS`; `None` if by
    /// neither.
    pub(super) fn wished(&self) -> Result<Option<Rendezvous>, DetectError> {
        let name = "TIDEWATER_RENDEZVOUS";
        let flag = self.explicit.rendezvous.as_deref();
        let Some(text) = flag.or_else(|| self.text(name)) else {
            return Ok(None);
        };
        let name = if flag.is_some() { "--rendezvous" } else { name };
        if text == "pmi" {
            let fd = self.number("PMI_FD", i32::MAX.unsigned_abs())?;
            let Some(fd) = fd.filter(|&fd| (self.is_socket)(fd)) else {
                let what = "the launcher's PMI, which needs PMI_FD to name an open socket";
                return Err(invalid(name, text, what));
            };
            return Ok(Some(Rendezvous::Pmi { fd }));
        }
        if super::is_address(text) && !text.contains('/') {
            return Ok(Some(Rendezvous::Address(text.to_owned())));
        }
        if text.contains('\0') {
            return Err(invalid(name, text, "pmi, HOST:PORT, or a directory"));
        }
        Ok(Some(Rendezvous::Directory(self.directory.join(text))))
    }

    /// Returns the rendezvous in directory `.tidewater/JOB` of the working directory. It is for a job that has
    /// a name and no better way.
    pub(super) fn default_directory(&self, job: &str) -> Rendezvous {
        Rendezvous::Directory(self.directory.join(".tidewater").join(job))
    }
}

fn is_open_socket(fd: u32) -> bool {
    let path = format!("/proc/self/fd/{fd}");
    let target = std::fs::read_link(path);
    target.is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
}

pub(super) fn invalid(name: &str, value: &str, expected: impl Into<String>) -> DetectError {
    DetectError::Invalid {
        name: name.to_owned(),
        value: value.chars().take(80).collect(),
        expected: expected.into(),
    }
}
