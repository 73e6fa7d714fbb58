//! Copies what a stage writes to its log to the screen, while it runs.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Interval between two looks at the log.
const LOOK: Duration = Duration::from_millis(100);

/// Thread that copies. Dropping it copies the rest.
#[derive(Debug)]
pub(crate) struct Follower {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    pub(crate) fn new(log: PathBuf) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            let Ok(mut file) = File::open(&log) else {
                eprintln!("warning: cannot read {}", log.display());
                return;
            };
            loop {
                let ends = stopped.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout);
                if copy(&mut file).is_err() || ends {
                    return; // without a reader of the screen there is nothing to do
                }
            }
        });
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

fn copy(file: &mut File) -> io::Result<()> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let mut screen = io::stdout().lock();
    screen.write_all(&bytes)?;
    screen.flush()
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            thread.join().ok(); // it does not panic
        }
    }
}
