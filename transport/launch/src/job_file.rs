//! Job files: one private file from which a process joins a job or a service. It replaces the token's file
//! and the variables for coordinator, servers and workers.
//!
//! ```text
//! tidewater-job 1
//! coordinator 10.0.0.7:7070
//! token 4f0c...  (64 hex digits)
//! cluster 7a11...  (hex; differs after each start of the coordinator)
//! servers 2
//! workers 0  (0: each job says it)
//! namespace default
//! written-by pid 4711 on node7
//! ```
//! Mode 0600: **it holds the job's token**. A file of another mode or owner is refused.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidewater_control::conn::ConnError;
use tidewater_control::dial::DialError;
use tidewater_protocol::ids::ClusterId;
use tidewater_protocol::limits::{
    JOB_FILE_BYTES_MAX, NAMESPACE_BYTES_MAX, SERVERS_MAX, WORKERS_MAX,
};
use tidewater_protocol::wire::handshake::{HandshakeError, JobToken};
use tidewater_protocol::wire::hello::Ids;
use tidewater_protocol::wire::refusal::RefusalCode;

use super::is_address;
use super::token::{self, TokenError};

const BEGIN: &str = "tidewater-job 1";

/// Content of a job file: coordinator, token, cluster and namespace by which a process joins a job. `Debug`
/// does not show the token.
#[derive(Debug, Clone)]
pub struct JobFile {
    /// Path of the file.
    pub path: PathBuf,
    /// `HOST:PORT` of the coordinator.
    pub coordinator: String,
    /// The secret of the job.
    pub token: JobToken,
    /// Number of the cluster: another one than the coordinator's means that the file is stale.
    pub cluster: ClusterId,
    /// Number of servers of the cluster.
    pub servers: u32,
    /// Number of workers; 0 if each job says it.
    pub workers: u32,
    /// Namespace of the jobs.
    pub namespace: String,
    /// Process id of the writer, for messages.
    pub pid: u32,
    /// Name of its host, for messages.
    pub host: String,
}

/// Reason why a job file cannot be read, written or used. The content is a secret and is not quoted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobFileError {
    /// The file cannot be read, or is not private.
    #[error("job file: {0}")]
    Private(TokenError),
    /// A line is missing or wrong.
    #[error(
        "{} is no job file of this release: {why}; let `tidewater serve --job-file` or `tidewater \
         coordinator --job-file` write it again",
        path.display()
    )]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// The line, without its value.
        why: String,
    },
    /// The file cannot be written.
    #[error("cannot write the job file {}: {source}; choose a directory that you own", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The coordinator that the file names is not at its address.
    #[error(
        "job file {} is stale: it names cluster {expected} at {address}, which pid {pid} on {host} \
         started, and {found}. Use the file that the running coordinator has written",
        path.display()
    )]
    Stale {
        /// Path of the file.
        path: PathBuf,
        /// Cluster in the file.
        expected: ClusterId,
        /// Address of the coordinator in the file.
        address: String,
        /// Process id of the file's writer.
        pid: u32,
        /// Host of the file's writer.
        host: String,
        /// What is there instead.
        found: String,
    },
}

impl JobFile {
    /// Maximum wait for the coordinator that a job file names. The coordinator ran before the file was written.
    pub const COORDINATOR_WAIT: Duration = Duration::from_secs(5);

    /// Reads and parses the job file at `path`.
    ///
    /// # Errors
    /// [`JobFileError`]: unreadable, open to others, or of another format.
    pub fn read(path: &Path) -> Result<Self, JobFileError> {
        let text = token::read_private(path, &path.display().to_string(), JOB_FILE_BYTES_MAX)
            .map_err(JobFileError::Private)?;
        Self::parse(path, &text).map_err(|why| JobFileError::Malformed {
            path: path.to_owned(),
            why,
        })
    }

    fn parse(path: &Path, text: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(text).map_err(|_| "it is not text".to_owned())?;
        let mut lines = text.lines();
        if lines.next() != Some(BEGIN) {
            return Err(format!("the first line is not \"{BEGIN}\""));
        }
        let mut next = |name: &str| {
            let line = lines.next().and_then(|line| line.strip_prefix(name));
            let value = line.and_then(|line| line.strip_prefix(' '));
            value.ok_or_else(|| format!("the line \"{name}\" is missing"))
        };
        let number = |name: &str, text: &str, max: u32| {
            let number = text.parse().ok().filter(|&n: &u32| n <= max);
            number.ok_or_else(|| format!("the value of \"{name}\" is not a number up to {max}"))
        };
        let wrong = |name: &str| format!("the value of \"{name}\" is not valid");
        let coordinator = next("coordinator")?;
        if !is_address(coordinator) {
            return Err(wrong("coordinator"));
        }
        let token = JobToken::from_hex(next("token")?).ok_or_else(|| wrong("token"))?;
        let cluster = u64::from_str_radix(next("cluster")?, 16).map_err(|_| wrong("cluster"))?;
        let servers = number("servers", next("servers")?, SERVERS_MAX)?;
        let workers = number("workers", next("workers")?, WORKERS_MAX)?;
        let namespace = next("namespace")?;
        if !(1..=NAMESPACE_BYTES_MAX).contains(&namespace.len()) {
            return Err(wrong("namespace"));
        }
        let writer = next("written-by pid")?.split_once(" on ");
        let (pid, host) = writer.ok_or_else(|| wrong("written-by"))?;
        Ok(Self {
            path: path.to_owned(),
            coordinator: coordinator.to_owned(),
            token,
            cluster: ClusterId(cluster),
            servers,
            workers,
            namespace: namespace.to_owned(),
            pid: number("written-by", pid, u32::MAX)?,
            host: host.to_owned(),
        })
    }

    /// Writes the file at its path, for its owner alone, replacing an earlier one atomically: a reader sees the
    /// old file or the new one.
    ///
    /// # Errors
    /// [`JobFileError::Write`].
    pub fn write(&self) -> Result<(), JobFileError> {
        let path = &self.path;
        let new = path.with_extension(format!("new-{}", std::process::id()));
        let written = self.create(&new).and_then(|()| fs::rename(&new, path));
        written.map_err(|source| {
            // What failed may have left it.
            let _ = fs::remove_file(&new);
            let path = path.clone();
            JobFileError::Write { path, source }
        })
    }

    fn create(&self, path: &Path) -> io::Result<()> {
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        let Self {
            coordinator,
            cluster,
            servers,
            workers,
            namespace,
            pid,
            host,
            ..
        } = self;
        let (token, cluster) = (self.token.to_hex(), cluster.0);
        let text = format!(
            "{BEGIN}\ncoordinator {coordinator}\ntoken {token}\ncluster {cluster:016x}\n\
             servers {servers}\nworkers {workers}\nnamespace {namespace}\n\
             written-by pid {pid} on {host}\n"
        );
        file.write_all(text.as_bytes())?;
        file.sync_all()
    }

    /// Removes the file if it still names this cluster, that is, if no other process has replaced it. Errors
    /// are ignored.
    pub fn remove(&self) {
        if Self::read(&self.path).is_ok_and(|found| found.cluster == self.cluster) {
            // Another process may remove it first.
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Returns the ids that a process expects in its handshake with the coordinator: the cluster of the file,
    /// the others unknown.
    pub fn ids(&self) -> Ids {
        Ids {
            cluster: self.cluster,
            ..Ids::default()
        }
    }

    /// Converts an error of a connection to the file's coordinator to [`JobFileError::Stale`]: it is
    /// unreachable, is of another cluster, or has another token. `None` for an error of another cause.
    pub fn explain(&self, error: &DialError) -> Option<JobFileError> {
        match error {
            DialError::Unreachable { source, .. } => {
                Some(self.stale(format!("no process listens there: {source}")))
            }
            DialError::Handshake {
                source:
                    ConnError::Handshake(
                        HandshakeError::TokenRefused | HandshakeError::PeerUnauthenticated,
                    ),
                ..
            } => Some(self.stale("a coordinator with another token runs there".to_owned())),
            DialError::Handshake {
                source: ConnError::Handshake(HandshakeError::RefusedByPeer(refusal)),
                ..
            } if refusal.code == RefusalCode::WrongCluster => {
                let found = ClusterId(refusal.numbers[1]);
                Some(self.stale(format!("cluster {found} runs there")))
            }
            _ => None,
        }
    }

    fn stale(&self, found: String) -> JobFileError {
        JobFileError::Stale {
            path: self.path.clone(),
            expected: self.cluster,
            address: self.coordinator.clone(),
            pid: self.pid,
            host: self.host.clone(),
            found,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tidewater_protocol::wire::refusal::Refusal;

    use super::*;

    fn file(path: &Path) -> JobFile {
        JobFile {
            path: path.to_owned(),
            coordinator: "10.0.0.7:7070".into(),
            token: JobToken::new([7; 32]),
            cluster: ClusterId(0x7a11),
            servers: 2,
            workers: 0,
            namespace: "name with blanks".into(),
            pid: 4711,
            host: "node7".into(),
        }
    }

    #[test]
    fn survives_the_file_and_shows_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.job");
        file(&path).write().unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        file(&path).write().unwrap();
        let read = JobFile::read(&path).unwrap();
        assert_eq!(read.token.to_hex(), file(&path).token.to_hex());
        assert_eq!(format!("{read:?}"), format!("{:?}", file(&path)));
        assert!(!format!("{read:?}").contains("0707"));
        // It is removed by its writer only.
        let mut other = file(&path);
        other.cluster = ClusterId(1);
        other.remove();
        assert!(path.exists());
        read.remove();
        assert!(!path.exists());
    }

    #[test]
    fn wrong_files_are_refused_by_line_without_their_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.job");
        file(&path).write().unwrap();
        let good = fs::read_to_string(&path).unwrap();
        let with = |from: &str, to: &str| {
            fs::write(&path, good.replacen(from, to, 1)).unwrap();
            JobFile::read(&path).unwrap_err().to_string()
        };
        for (from, to, why) in [
            ("job 1", "job 2", "first line"),
            ("10.0.0.7:7070", "10.0.0.7", "\"coordinator\""),
            ("token 07", "token 7", "\"token\""),
            ("servers 2", "servers 1025", "\"servers\""),
            ("workers 0", "worker 0", "\"workers\""),
            ("pid 4711 on", "pid x on", "\"written-by\""),
        ] {
            let said = with(from, to);
            assert!(said.contains(why) && !said.contains("0707"), "{said}");
        }
        file(&path).write().unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let said = JobFile::read(&path).unwrap_err().to_string();
        assert!(said.contains("0640"), "{said}");
        let refusal = |code| DialError::Handshake {
            address: "x".into(),
            source: HandshakeError::RefusedByPeer(Refusal::new(code, [0x7a11, 2, 0, 0])).into(),
        };
        let other = refusal(RefusalCode::RankTaken);
        assert!(file(&path).explain(&other).is_none());
        let stale = file(&path)
            .explain(&refusal(RefusalCode::WrongCluster))
            .unwrap()
            .to_string();
        for part in ["stale", "pid 4711 on node7", "10.0.0.7:7070", "cluster 2"] {
            assert!(stale.contains(part), "{stale}");
        }
    }
}
