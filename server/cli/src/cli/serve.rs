//! The subcommand `tidewater serve`: coordinator and servers in one process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tidewater_engine::store::Hugepages;
use tidewater_launch::{FabricSettings, JobEnv, RdmaDevice};
use tidewater_protocol::limits::{NAMESPACE_BYTES_MAX, PENDING_BYTES_DEFAULT, SAVE_BYTES_DEFAULT};
use tidewater_service::embedded::{Cluster, ClusterConfig};
use tidewater_service::server::CAPACITY_DEFAULT;

use super::publish::{Publication, PublishArgs, Published};
use super::roles::{
    Outcome, Stop, code, complain, environment, fabric, log, published_token, rdma_device,
};

/// The arguments of `serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Number of servers to run.
    #[arg(long, default_value_t = 1, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=64))]
    servers: u32,
    /// Workers of each job, if the number is fixed; otherwise each job sets it.
    #[arg(long, default_value_t = 0, value_name = "W")]
    workers: u32,
    /// Address that the coordinator listens on.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Host, or HOST:PORT, given to others, if it is not the one listened on.
    #[arg(long, value_name = "HOST")]
    advertise: Option<String>,
    /// Applier threads of each server.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    appliers: u16,
    /// Bytes of address space for a server's parameters, and as many for their state; only pages
    /// that are used cost memory.
    #[arg(long, value_name = "BYTES", default_value_t = CAPACITY_DEFAULT)]
    capacity: usize,
    /// Let clients count their pushes in a word of each applier (an atomic a push): programs can
    /// then measure how much has arrived since they pulled.
    #[arg(long)]
    count_pushes: bool,
    /// Bytes of pushes at the clock that an applier holds for workers that are ahead of their turn in
    /// the iteration; beyond that their pushes wait. A program that synchronises its workers by other
    /// means between push and tick needs it for all pushes of an iteration.
    #[arg(long, value_name = "BYTES", default_value_t = PENDING_BYTES_DEFAULT)]
    pending_bytes: usize,
    /// Bytes of copied records that a save holds in a server until the file system takes them: those of
    /// rows and blocks that change while it is under way. Beyond that the save fails, and training goes
    /// on. A save of tables that change completely needs their size.
    #[arg(long, value_name = "BYTES", default_value_t = SAVE_BYTES_DEFAULT)]
    save_bytes: usize,
    #[command(flatten)]
    busy: super::BusyPollArgs,
    #[command(flatten)]
    modules: super::functions::ModuleArgs,
    /// RDMA ports to serve through, as in mlx5_0, mlx5_0:1 or mlx5_0:1:3 (device, port, GID); several
    /// separated by commas, the local rank chooses the first; %r in a device name is the local rank
    /// [default: TIDEWATER_RDMA_DEVICE, or the fastest and nearest ones that reach the client].
    #[arg(long, value_name = "NAMES")]
    rdma_device: Option<RdmaDevice>,
    #[command(flatten)]
    fabric: FabricSettings,
    /// Pages of the memory of --capacity: auto (hugepages if they hold all of it), 2M, 1G or off
    /// [default: auto, without a warning where it takes ordinary pages].
    #[arg(long, value_parser = super::parse_hugepages)]
    hugepages: Option<Hugepages>,
    #[command(flatten)]
    place: super::PlaceArgs,
    /// File, mode 0600, with the token that jobs must have [default: TIDEWATER_TOKEN_FILE].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Serve this namespace apart from others: servers, memory and token of its own, written into a job
    /// file. May be repeated. Ports follow that of --listen, unless that is 0.
    #[arg(long, value_name = "NAME=FILE", value_parser = parse_namespace,
          conflicts_with_all = ["token_file", "job_file"])]
    namespace: Vec<NamespaceFile>,
    #[command(flatten)]
    publish: PublishArgs,
}

/// A namespace with the path of its job file.
#[derive(Debug, Clone)]
struct NamespaceFile {
    name: String,
    file: PathBuf,
}

fn parse_namespace(text: &str) -> Result<NamespaceFile, String> {
    let split = text.split_once('=').filter(|(_, file)| !file.is_empty());
    let (name, file) = split.ok_or("not NAME=FILE")?;
    let most = NAMESPACE_BYTES_MAX;
    if !(1..=most).contains(&name.len()) || name.chars().any(char::is_control) {
        return Err(format!(
            "a namespace has 1 to {most} bytes, without control characters"
        ));
    }
    Ok(NamespaceFile {
        name: name.to_owned(),
        file: file.into(),
    })
}

/// Runs a cluster in this process until it is stopped.
pub(crate) fn serve(args: ServeArgs) -> ExitCode {
    code(run_serve(args))
}

fn run_serve(mut args: ServeArgs) -> Outcome {
    log();
    let env = environment()?;
    let stop = Stop::new(env.as_ref())?;
    args.publish.check_open(args.listen, true)?;
    let namespaces = std::mem::take(&mut args.namespace);
    let config = args.config(env.as_ref(), namespaces.is_empty())?;
    let mut running = Vec::new();
    if namespaces.is_empty() {
        running.push(start_service(&config, &args.publish)?);
    }
    for (number, namespace) in (0..).zip(namespaces) {
        let mut config = config.clone();
        if number > 0 && config.listen.port() != 0 {
            let port = config.listen.port().checked_add(number);
            let port = port.ok_or_else(|| complain(2, "the ports after --listen are used up"))?;
            config.listen.set_port(port);
        }
        config.namespaces = vec![namespace.name];
        let publish = PublishArgs {
            job_file: Some(namespace.file),
            metrics: args.publish.metrics.filter(|_| number == 0),
            ..args.publish.clone()
        };
        running.push(start_service(&config, &publish)?);
    }
    for (cluster, _) in &running {
        stop.ready(&cluster.environment().coordinator)?;
    }
    let failures = running
        .iter()
        .map(|(cluster, _)| cluster.failure_descriptor());
    stop.wait(&failures.collect::<Vec<_>>())?;
    match running.iter().find_map(|(cluster, _)| cluster.failure()) {
        // Later jobs would wait for this server in vain.
        Some(why) => Err(complain(4, why)),
        None => Ok(()),
    }
}

/// Starts a cluster of this process and publishes it.
fn start_service(
    config: &ClusterConfig,
    publish: &PublishArgs,
) -> Result<(Cluster, Publication), ExitCode> {
    let cluster = Cluster::start(config).map_err(|error| complain(3, error))?;
    let here = cluster.environment();
    let publication = publish.publish(Published {
        address: here.coordinator.clone(),
        local: here.local,
        token: here.token.clone(),
        cluster: here.cluster,
        servers: here.servers,
        workers: here.workers,
        namespace: config.namespaces.first().cloned(),
    })?;
    Ok((cluster, publication))
}

impl ServeArgs {
    /// Configuration of the servers; `is_shared`: all jobs share them, and their token.
    fn config(&self, env: Option<&JobEnv>, is_shared: bool) -> Result<ClusterConfig, ExitCode> {
        let token = match is_shared {
            true => Some(published_token(
                self.token_file.clone(),
                env,
                &self.publish,
            )?),
            false => None,
        };
        let (nic, mlock) = self.place.take().map_err(|error| complain(3, error))?;
        Ok(ClusterConfig {
            nic,
            mlock,
            servers: self.servers,
            workers: self.workers,
            service: true,
            appliers: self.appliers,
            capacity: self.capacity,
            rdma_device: rdma_device(self.rdma_device.clone(), env)?,
            fabric: fabric(self.fabric, env)?,
            count_pushes: self.count_pushes,
            pending_bytes: self.pending_bytes,
            save_bytes: self.save_bytes,
            busy_poll: self.busy.busy_poll,
            functions: self.modules.functions()?,
            hugepages: self.hugepages.unwrap_or_default(),
            token,
            listen: self.listen,
            advertise: self.advertise.clone(),
            ..ClusterConfig::default()
        })
    }
}
