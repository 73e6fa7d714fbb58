//! Clients over shared memory detect a killed server, including clients that only read.

use std::time::Duration;

use rustix::process::Signal;
use tidewater::{Client, ClientError, PullOptions, Table, TableBuilder};
use tidewater_launch::TransportChoice;
use tidewater_protocol::table::PushOp;
use tidewater_runtime::clock::{self, Deadline};

use crate::by_hand::Cluster;
use crate::proc::Process;

/// Detection takes milliseconds; a pull that never fails must fail its test within two minutes.
const KNOWN_WITHIN: Duration = Duration::from_secs(40);

struct Reader {
    client: Client,
    table: Table<f32>,
    keys: Vec<u64>,
}

impl Reader {
    /// Connects over shared memory, with rows on every lane, each pulled once.
    fn of(cluster: &Cluster) -> Self {
        let mut client = cluster.client(TransportChoice::Shm);
        let spec = TableBuilder::sparse::<f32>("rows", 4);
        let table = client.create_table(spec.spec()).unwrap();
        let keys: Vec<u64> = (0..256).collect();
        let ones = vec![1.0; keys.len() * 4];
        let pushed = client.push_rows(&table, &keys, &ones, PushOp::Sum).unwrap();
        client.wait_applied(&pushed).unwrap();
        let mut reader = Self {
            client,
            table,
            keys,
        };
        reader.pull().unwrap();
        reader
    }

    fn pull(&mut self) -> Result<(), ClientError> {
        let mut out = vec![0.0; self.keys.len() * 4];
        let options = PullOptions {
            timeout: KNOWN_WITHIN,
            ..PullOptions::default()
        };
        self.client
            .pull_rows(&self.table, &self.keys, &mut out, options)?;
        assert!(out.iter().all(|&value| value == 1.0), "{out:?}");
        Ok(())
    }
}

type Call = fn(&mut Reader) -> Result<(), ClientError>;

/// The error of the first call that fails after all of `killed` were killed.
fn error_after_kill(reader: &mut Reader, killed: &[Process], call: Call) -> ClientError {
    for process in killed {
        process.signal(Signal::KILL);
    }
    let (began, limit) = (clock::now(), Deadline::after(KNOWN_WITHIN));
    loop {
        if let Err(error) = call(reader) {
            println!("known after {:?}: {error}", began.elapsed());
            return error;
        }
        assert!(
            !limit.passed(),
            "a killed server is read from for {KNOWN_WITHIN:?}"
        );
    }
}

#[test]
fn pull_from_a_killed_server_fails_and_names_it() {
    // One server: a second one would end in order with the job, and close its lanes.
    let cluster = Cluster::start(1);
    let mut reader = Reader::of(&cluster);
    let killed = cluster.server_processes();
    let error = error_after_kill(&mut reader, &killed, Reader::pull);
    assert!(error.to_string().contains("server 0"), "{error}");
}

#[test]
fn progress_without_its_server_fails() {
    let cluster = Cluster::start(1);
    let mut reader = Reader::of(&cluster);
    let progress = |reader: &mut Reader| reader.client.progress();
    let killed = cluster.server_processes();
    let error = error_after_kill(&mut reader, &killed, progress);
    assert!(error.to_string().contains("server 0"), "{error}");
}

/// As in `tidewater serve`, where the coordinator is in the killed process. It is killed while it is
/// stopped, when its memory can still be read.
#[test]
fn stopped_server_is_read_until_it_is_killed() {
    let cluster = Cluster::start(1);
    let mut reader = Reader::of(&cluster);
    let all = cluster.processes();
    for process in &all {
        process.signal(Signal::STOP);
    }
    let limit = Deadline::after(KNOWN_WITHIN);
    while !all.iter().all(|process| process.state() == Some('T')) {
        assert!(!limit.passed(), "they do not stop");
        std::thread::sleep(Duration::from_millis(2));
    }
    for _ in 0..1_000 {
        reader.pull().unwrap();
        reader.client.progress().unwrap();
    }
    let error = error_after_kill(&mut reader, &all, Reader::pull);
    assert!(
        matches!(
            error,
            ClientError::Control { .. } | ClientError::ServerLost { .. }
        ),
        "{error}"
    );
}
