//! The end that listens: it runs the server, and does what the caller asks for.

use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

use tidewater::{RdmaDevice, TransportChoice};
use tidewater_launch::fabric_from_env;
use tidewater_protocol::ids::ApplierId;
use tidewater_runtime::clock::Deadline;
use tidewater_service::embedded::{Cluster, ClusterConfig};

use crate::conn::{Answer, Ask, Conn, ServerFacts, VERSION};
use crate::device::{Device, ServedLane};
use crate::error::CheckError;
use crate::facts::{self, HostFacts};
use crate::report::Report;
use crate::{Host, Options, counters, perftest};

/// Longest silence of the caller: it works alone for as long.
const IDLE: Duration = Duration::from_secs(900);
/// Time for a new connection to begin a check.
const BEGIN: Duration = Duration::from_secs(5);
/// Appliers of the server: lanes of both kinds, and reads of two queue pairs.
const APPLIERS: u16 = 2;
/// Bytes of each of the server's memories: the check's tables, and the growth of the ledger.
const CAPACITY: usize = 256 << 20;

/// Waits for a caller at `address` and serves its check. `say` gets lines of progress.
///
/// # Errors
/// [`CheckError`]: no check was made.
pub fn listen(
    address: SocketAddr,
    host: Host,
    options: &Options,
    say: &mut dyn FnMut(&str),
) -> Result<Report, CheckError> {
    let refused = |source| CheckError::Listen { address, source };
    let listener = TcpListener::bind(address).map_err(refused)?;
    let at = listener.local_addr().map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    say(&format!(
        "waiting at {at}; run on the other node: tidewater rdma-check {at}"
    ));
    let deadline = Deadline::after(options.wait);
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                let begun = Conn::new(stream, peer)
                    .and_then(|mut conn| Ok((conn.receive::<Ask>(BEGIN)?, conn)));
                match begun {
                    Ok((Ask::Begin { version, facts }, conn)) if version == VERSION => {
                        say(&format!("checked by {} at {peer}", facts.host));
                        drop(listener);
                        return Served::new(conn, host, options)?.serve(say);
                    }
                    // A port scanner, or another version: its check fails, and ours goes on waiting.
                    Ok((_, mut conn)) => {
                        let why = format!("this end has version {VERSION} of the check");
                        if let Err(error) = conn.send(&Answer::Failed(why)) {
                            say(&format!("ignored: {error}"));
                        }
                    }
                    Err(error) => say(&format!("ignored: {error}")),
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(source) => return Err(refused(source)),
        }
        if deadline.passed() {
            return Err(CheckError::Alone {
                address: at,
                waited: options.wait,
            });
        }
    }
}

/// State of the listener during a check. The server ends before the device is closed.
struct Served {
    conn: Conn,
    facts: HostFacts,
    cluster: Option<Cluster>,
    perftest: Option<perftest::Server>,
    lane: Option<ServedLane>,
    device: Option<Device>,
    wish: Option<RdmaDevice>,
}

impl Served {
    fn new(conn: Conn, host: Host, options: &Options) -> Result<Self, CheckError> {
        let address = conn.local()?.ip();
        let (facts, device) = host.facts(address, options.device.as_ref());
        Ok(Self {
            conn,
            facts,
            cluster: None,
            perftest: None,
            lane: None,
            device,
            wish: options.device.clone(),
        })
    }

    /// Answers requests until the result comes.
    fn serve(mut self, say: &mut dyn FnMut(&str)) -> Result<Report, CheckError> {
        self.conn
            .send(&Answer::Facts(Box::new(self.facts.clone())))?;
        loop {
            let ask = self.conn.receive::<Ask>(IDLE)?;
            if let Ask::Finish(report) = ask {
                self.conn.send(&Answer::Done)?;
                return Ok(*report);
            }
            if let Some(what) = progress(&ask) {
                say(what);
            }
            let answer = self.answer(ask).unwrap_or_else(Answer::Failed);
            self.conn.send(&answer)?;
        }
    }

    fn answer(&mut self, ask: Ask) -> Result<Answer, String> {
        let device = self.device.as_ref().ok_or("this end has no device");
        match ask {
            Ask::Begin { .. } | Ask::Finish(_) => Err("the check is under way".to_owned()),
            Ask::Lane(connect) => {
                connect.validate().map_err(|e| e.to_string())?;
                let (lane, connected, key) = device?.accept(&connect)?;
                self.lane = Some(lane);
                Ok(Answer::Lane {
                    connected: Box::new(connected),
                    key,
                })
            }
            Ask::EndLane => {
                self.lane = None;
                Ok(Answer::Done)
            }
            Ask::Counters => {
                let device = self.facts.device.as_ref().ok_or("this end has no device")?;
                Ok(Answer::Counters(counters::read(&device.name, device.port)))
            }
            Ask::Serve => self.start_server(),
            Ask::Server => Ok(Answer::Server(self.server())),
            Ask::Perftest { program } => {
                self.perftest = None;
                let device = self.facts.device.as_ref().ok_or("this end has no device")?;
                let (server, port) = perftest::Server::start(program, device, self.facts.address)?;
                self.perftest = Some(server);
                Ok(Answer::Port(port))
            }
            Ask::Contract { rounds } => device?.contract(rounds.min(10_000)).map(Answer::Contract),
            Ask::Register { bytes } => {
                facts::check_available(bytes)?;
                device?.register(bytes).map(Answer::Registered)
            }
        }
    }

    fn start_server(&mut self) -> Result<Answer, String> {
        let fabric = fabric_from_env().map_err(|e| e.to_string())?;
        let config = ClusterConfig {
            appliers: APPLIERS,
            workers: 0,
            service: true,
            transport: TransportChoice::Verbs,
            capacity: CAPACITY,
            rdma_device: self.wish.clone(),
            fabric,
            listen: SocketAddr::new(self.facts.address, 0),
            ..ClusterConfig::default()
        };
        self.cluster = None;
        let cluster = Cluster::start(&config).map_err(|e| e.to_string())?;
        let (coordinator, token) = {
            let here = cluster.environment();
            (here.coordinator.clone(), here.token.to_hex())
        };
        self.cluster = Some(cluster);
        Ok(Answer::Serving { coordinator, token })
    }

    fn server(&self) -> ServerFacts {
        let handle = self.cluster.as_ref().and_then(|cluster| cluster.server(0));
        let appliers = handle
            .map(|handle| handle.report().appliers)
            .unwrap_or_default(); // no server: no frames
        let sum = |of: fn(&tidewater_protocol::wire::control::ApplierStatus) -> u64| {
            appliers
                .iter()
                .filter(|a| a.applier < ApplierId(APPLIERS))
                .map(of)
                .sum()
        };
        ServerFacts {
            frames: sum(|a| a.frames),
            late_frames: sum(|a| a.late_frames),
            pairs: self
                .facts
                .device
                .as_ref()
                .and_then(|device| pairs(&device.name)),
        }
    }
}

/// Reliable queue pairs of a device that any process has; `None` where `rdma` is not installed.
fn pairs(device: &str) -> Option<u64> {
    let mut command = Command::new("rdma");
    let output = command
        .args(["resource", "show", "qp", "link", device])
        .output()
        .ok()?;
    let text = output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())?;
    Some(text.lines().filter(|line| line.contains("type RC")).count() as u64)
}

/// Line of progress for a request that takes long.
const fn progress(ask: &Ask) -> Option<&'static str> {
    match ask {
        Ask::Serve => Some("serving clients"),
        Ask::Contract { .. } => Some("testing the lane contract on the device"),
        Ask::Register { .. } => Some("registering memory"),
        _ => None,
    }
}
