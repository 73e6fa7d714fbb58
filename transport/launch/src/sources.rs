//! The launchers, one function each: interpretation of their documented variables.

use super::environment::{DetectError, LaunchEnv, invalid};
use super::hostlist;
use super::place::{Decision, Place, Rendezvous, Source};
use tidewater_protocol::limits::{HOSTLIST_HOSTS_MAX, LAUNCHED_MAX};

/// What one source (launcher) contributes to the decision: a decision, or the reason for none.
#[derive(Debug)]
pub(super) enum Evidence {
    /// The decision, if no closer source has made it.
    Decided(Result<Decision, DetectError>),
    /// Traces without effect, for this reason.
    Passed(String),
}

/// Traces of one source (launcher) in the environment, with what they mean.
#[derive(Debug)]
pub(super) struct Sight {
    pub(super) source: Source,
    pub(super) seen: Vec<(String, String)>,
    pub(super) says: Evidence,
}

type Detector = fn(&LaunchEnv<'_>) -> Option<Sight>;

/// Detectors of all sources, the closest to the process first; the module `detect` has the reasons of the
/// order.
pub(super) const ALL: &[Detector] = &[
    flags, member, tidewater, pmi, pmi_port, open_mpi, flux, slurm, prrte, torchrun, dmlc,
];

/// Values that one launcher gives to a process, before the rendezvous is selected.
struct LauncherValues {
    source: Source,
    rank: Option<u32>,
    size: Option<u32>,
    local_rank: Option<u32>,
    local_size: Option<u32>,
    job: Option<String>,
    hosts: Vec<String>,
    /// The launcher's own way of rendezvous.
    own: Option<Rendezvous>,
    /// Reason why it has none.
    otherwise: &'static str,
}

impl LauncherValues {
    const fn by(source: Source) -> Self {
        Self {
            source,
            rank: None,
            size: None,
            local_rank: None,
            local_size: None,
            job: None,
            hosts: Vec::new(),
            own: None,
            otherwise: "it gives no name to the job",
        }
    }

    fn decide(self, around: &LaunchEnv<'_>) -> Result<Decision, DetectError> {
        let source_name = self.source.name();
        let incomplete = |missing: &str| DetectError::Incomplete {
            source_name,
            missing: missing.to_owned(),
            remedy: "Give --rank, --size and --rendezvous, or TIDEWATER_RANK, TIDEWATER_SIZE and \
                     TIDEWATER_RENDEZVOUS"
                .into(),
        };
        let size = around.explicit.size.or(self.size);
        let size = size.ok_or_else(|| incomplete("it does not say how many there are"))?;
        let rank = around.explicit.rank.or(self.rank);
        let rank = rank.ok_or_else(|| incomplete("it does not say which of them this is"))?;
        if rank >= size {
            return Err(invalid(
                "rank",
                &rank.to_string(),
                format!("a number below the {size} processes there are"),
            ));
        }
        let job = self.job.as_deref().map(file_name);
        let meeting = around.wished()?.or(self.own);
        let meeting = meeting.or_else(|| Some(around.default_directory(job.as_deref()?)));
        if meeting.is_none() && size > 1 {
            return Err(DetectError::NoRendezvous {
                source_name,
                rank,
                size,
                why: self.otherwise,
            });
        }
        Ok(Decision::Launched(Place {
            source: self.source,
            rank,
            size,
            local_rank: self.local_rank,
            local_size: self.local_size.filter(|&local| local >= 1 && local <= size),
            job,
            hosts: self.hosts,
            rendezvous: meeting,
        }))
    }
}

/// Builds the traces of `source` from the variables `names`. `fill` reads the launcher's values; an error in
/// one of them becomes the decision.
fn sight(
    around: &LaunchEnv<'_>,
    source: Source,
    names: &[&str],
    fill: impl FnOnce(&mut LauncherValues) -> Result<(), DetectError>,
) -> Sight {
    let mut values = LauncherValues::by(source);
    let filled = fill(&mut values);
    Sight {
        source,
        seen: around.seen(names),
        says: Evidence::Decided(filled.and_then(|()| values.decide(around))),
    }
}

fn passed(around: &LaunchEnv<'_>, source: Source, names: &[&str], why: &str) -> Sight {
    Sight {
        source,
        seen: around.seen(names),
        says: Evidence::Passed(why.to_owned()),
    }
}

fn flags(around: &LaunchEnv<'_>) -> Option<Sight> {
    let explicit = &around.explicit;
    let (rank, size) = (explicit.rank?, explicit.size?);
    let mut sight = sight(around, Source::Flags, &[], |values| {
        if size == 0 || size > LAUNCHED_MAX {
            let expected = format!("a number from 1 to {LAUNCHED_MAX}");
            return Err(invalid("--size", &size.to_string(), expected));
        }
        (values.rank, values.size) = (Some(rank), Some(size));
        values.otherwise = "--rendezvous is not given";
        Ok(())
    });
    let flag = |name: &str, value: &dyn ToString| (name.to_owned(), value.to_string());
    sight.seen.push(flag("--rank", &rank));
    sight.seen.push(flag("--size", &size));
    let meeting = explicit.rendezvous.iter();
    sight
        .seen
        .extend(meeting.map(|place| flag("--rendezvous", place)));
    Some(sight)
}

/// Detects `tidewater run` or variables set by hand for a job with a coordinator: role or coordinator address
/// is set.
fn member(around: &LaunchEnv<'_>) -> Option<Sight> {
    let names = ["TIDEWATER_ROLE", "TIDEWATER_COORDINATOR"];
    names.iter().find_map(|name| around.raw(name))?;
    Some(Sight {
        source: Source::Tidewater,
        seen: around.seen(&names),
        says: Evidence::Decided(Ok(Decision::Member)),
    })
}

fn tidewater(around: &LaunchEnv<'_>) -> Option<Sight> {
    let names = ["TIDEWATER_RANK", "TIDEWATER_SIZE", "TIDEWATER_RENDEZVOUS"];
    around.raw("TIDEWATER_SIZE")?;
    let has_rank = around.explicit.rank.is_some() || around.raw("TIDEWATER_RANK").is_some();
    if !has_rank && around.raw("PMIX_RANK").is_some() {
        let why = "TIDEWATER_RANK is not set: the size is for the launcher that says the rank only";
        return Some(passed(around, Source::Tidewater, &names, why));
    }
    Some(sight(around, Source::Tidewater, &names, |values| {
        values.size = around.count("TIDEWATER_SIZE")?;
        values.rank = around.rank("TIDEWATER_RANK", values.size.unwrap_or(1))?;
        values.otherwise = "TIDEWATER_RENDEZVOUS is not set";
        Ok(())
    }))
}

/// Detects PMI-1 on an open socket: the protocol of hydra, Flux, and Slurm's pmi2 plugin.
fn pmi(around: &LaunchEnv<'_>) -> Option<Sight> {
    let names = [
        "PMI_FD",
        "PMI_RANK",
        "PMI_SIZE",
        "PMI_JOBID",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        "FLUX_TASK_RANK",
        "FLUX_TASK_LOCAL_ID",
        "SLURM_STEP_ID",
        "SLURM_LOCALID",
    ];
    around.raw("PMI_FD")?;
    let set = |name| around.raw(name).is_some();
    let source = match () {
        () if set("FLUX_TASK_RANK") => Source::Flux,
        () if set("SLURM_STEP_ID") && set("PMI_JOBID") => Source::Slurm,
        () => Source::Hydra,
    };
    let fd = around.number("PMI_FD", i32::MAX.unsigned_abs());
    if let Ok(Some(fd)) = fd
        && !(around.is_socket)(fd)
    {
        let why = format!(
            "descriptor {fd} is not an open socket: PMI_FD was inherited, by way of another launcher"
        );
        return Some(passed(around, source, &names, &why));
    }
    Some(sight(around, source, &names, |values| {
        let fd = fd?;
        values.size = around.count("PMI_SIZE")?;
        values.rank = around.rank("PMI_RANK", values.size.unwrap_or(1))?;
        let [local_rank, local_size] = match source {
            Source::Flux => ["FLUX_TASK_LOCAL_ID", ""],
            Source::Slurm => ["SLURM_LOCALID", ""],
            _ => ["MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
        };
        values.local_rank = around.rank(local_rank, values.size.unwrap_or(1))?;
        values.local_size = around.count(local_size)?;
        if source == Source::Slurm {
            values.local_size = slurm_local_size(around);
            values.hosts = slurm_hosts(around);
        }
        values.own = fd.map(|fd| Rendezvous::Pmi { fd });
        Ok(())
    }))
}

/// Detects `mpiexec -pmi-port`, which is not supported: only the port reports the size.
fn pmi_port(around: &LaunchEnv<'_>) -> Option<Sight> {
    let names = ["PMI_PORT", "PMI_ID"];
    around.raw("PMI_PORT")?;
    let mut sight = sight(around, Source::Hydra, &names, |values| {
        values.rank = around.number("PMI_ID", LAUNCHED_MAX - 1)?;
        values.otherwise = "PMI over a port is not spoken here; start without -pmi-port";
        Ok(())
    });
    if around.explicit.size.is_none()
        && let Evidence::Decided(Err(DetectError::Incomplete { remedy, .. })) = &mut sight.says
    {
        "Start without -pmi-port".clone_into(remedy);
    }
    Some(sight)
}

fn open_mpi(around: &LaunchEnv<'_>) -> Option<Sight> {
    let names = [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMIX_NAMESPACE",
    ];
    around.raw("OMPI_COMM_WORLD_RANK")?;
    Some(sight(around, Source::OpenMpi, &names, |values| {
        values.size = around.count("OMPI_COMM_WORLD_SIZE")?;
        let size = values.size.unwrap_or(1);
        values.rank = around.rank("OMPI_COMM_WORLD_RANK", size)?;
        values.local_rank = around.rank("OMPI_COMM_WORLD_LOCAL_RANK", size)?;
        values.local_size = around.count("OMPI_COMM_WORLD_LOCAL_SIZE")?;
        let name = around.text("PMIX_NAMESPACE");
        values.job = name.map(|name| format!("ompi-{name}"));
        values.otherwise = "PMIX_NAMESPACE, which names the job, is not set";
        Ok(())
    }))
}

fn flux(around: &LaunchEnv<'_>) -> Option<Sight> {
    let names = [
        "FLUX_TASK_RANK",
        "FLUX_JOB_SIZE",
        "FLUX_TASK_LOCAL_ID",
        "FLUX_JOB_ID",
    ];
    around.raw("FLUX_TASK_RANK")?;
    Some(sight(around, Source::Flux, &names, |values| {
        values.size = around.count("FLUX_JOB_SIZE")?;
        let size = values.size.unwrap_or(1);
        values.rank = around.rank("FLUX_TASK_RANK", size)?;
        values.local_rank = around.rank("FLUX_TASK_LOCAL_ID", size)?;
        let name = around.text("FLUX_JOB_ID");
        values.job = name.map(|name| format!("flux-{name}"));
        values.otherwise = "FLUX_JOB_ID is not set, and PMI_FD names no open socket";
        Ok(())
    }))
}

fn slurm(around: &LaunchEnv<'_>) -> Option<Sight> {
    let names = [
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_STEP_NODELIST",
    ];
    around.raw("SLURM_JOB_ID")?;
    let step = around.text("SLURM_STEP_ID").and(around.raw("SLURM_PROCID"));
    if step.is_none() {
        let why = "SLURM_STEP_ID and SLURM_PROCID are not both set: this is a job's script or \
                   shell, or something it started without srun";
        return Some(passed(around, Source::Slurm, &names, why));
    }
    Some(sight(around, Source::Slurm, &names, |values| {
        // SLURM_NTASKS is the job's; a step may have fewer.
        values.size = match around.count("SLURM_STEP_NUM_TASKS")? {
            None => around.count("SLURM_NTASKS")?,
            size => size,
        };
        let size = values.size.unwrap_or(1);
        values.rank = around.rank("SLURM_PROCID", size)?;
        values.local_rank = around.rank("SLURM_LOCALID", size)?;
        values.local_size = slurm_local_size(around);
        values.hosts = slurm_hosts(around);
        let name = |variable| around.text(variable).unwrap_or("0");
        let (job, step) = (name("SLURM_JOB_ID"), name("SLURM_STEP_ID"));
        // A requeued job keeps its number, but is another job.
        let again = around.text("SLURM_RESTART_COUNT");
        let again = again.map_or(String::new(), |count| format!("-{count}"));
        values.job = Some(format!("slurm-{job}.{step}{again}"));
        let has_token = around.raw("TIDEWATER_TOKEN_FILE").is_some();
        if has_token && let (Some(host), Ok(number)) = (values.hosts.first(), job.parse::<u64>()) {
            let port = hostlist::port_of(number, step);
            values.own = Some(Rendezvous::Address(format!("{host}:{port}")));
        }
        Ok(())
    }))
}

/// Detects PRRTE without Open MPI, which gives a rank and no size.
fn prrte(around: &LaunchEnv<'_>) -> Option<Sight> {
    let names = ["PMIX_RANK", "PMIX_NAMESPACE", "TIDEWATER_SIZE"];
    around.raw("PMIX_RANK")?;
    let is_another = ["OMPI_COMM_WORLD_RANK", "SLURM_STEP_ID", "FLUX_TASK_RANK"];
    if is_another.iter().any(|name| around.raw(name).is_some()) {
        return None;
    }
    let mut sight = sight(around, Source::Prrte, &names, |values| {
        values.rank = around.number("PMIX_RANK", LAUNCHED_MAX - 1)?;
        values.size = around.count("TIDEWATER_SIZE")?;
        let name = around.text("PMIX_NAMESPACE");
        values.job = name.map(|name| format!("pmix-{name}"));
        Ok(())
    });
    if let Evidence::Decided(Err(DetectError::Incomplete { remedy, .. })) = &mut sight.says {
        "Set TIDEWATER_SIZE for all, or give --size".clone_into(remedy);
    }
    Some(sight)
}

fn torchrun(around: &LaunchEnv<'_>) -> Option<Sight> {
    let names = [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
    ];
    around.raw("RANK").and(around.raw("WORLD_SIZE"))?;
    Some(sight(around, Source::Torchrun, &names, |values| {
        values.size = around.count("WORLD_SIZE")?;
        let size = values.size.unwrap_or(1);
        values.rank = around.rank("RANK", size)?;
        values.local_rank = around.rank("LOCAL_RANK", size)?;
        values.local_size = around.count("LOCAL_WORLD_SIZE")?;
        // The port itself is the launcher's: it names the job, and is not listened on.
        let (host, port) = (around.text("MASTER_ADDR"), around.text("MASTER_PORT"));
        let run = around.text("TORCHELASTIC_RUN_ID").unwrap_or("none");
        let restart = around.text("TORCHELASTIC_RESTART_COUNT").unwrap_or("0");
        values.job = host
            .zip(port)
            .map(|(host, port)| format!("torch-{host}-{port}-{run}-{restart}"));
        values.otherwise = "MASTER_ADDR and MASTER_PORT, which name the job, are not set";
        Ok(())
    }))
}

/// Detects scripts for ps-lite: workers and servers have a scheduler's address, workers perhaps a number.
fn dmlc(around: &LaunchEnv<'_>) -> Option<Sight> {
    let names = [
        "DMLC_ROLE",
        "DMLC_WORKER_ID",
        "DMLC_NUM_WORKER",
        "DMLC_NUM_SERVER",
        "DMLC_PS_ROOT_URI",
        "DMLC_PS_ROOT_PORT",
    ];
    around.raw("DMLC_ROLE")?;
    let mut sight = sight(around, Source::Dmlc, &names, |values| {
        let servers = around.count("DMLC_NUM_SERVER")?;
        let workers = around.count("DMLC_NUM_WORKER")?;
        values.size = servers
            .zip(workers)
            .map(|(servers, workers)| servers.saturating_add(workers).min(LAUNCHED_MAX));
        // Servers come first, as in `mpirun -n S tidewater server : -n W ./sim`.
        let worker = around.rank("DMLC_WORKER_ID", workers.unwrap_or(1))?;
        let is_worker = around.text("DMLC_ROLE") == Some("worker");
        values.rank = worker
            .filter(|_| is_worker)
            .zip(servers)
            .map(|(worker, servers)| servers.saturating_add(worker));
        let (host, port) = (
            around.text("DMLC_PS_ROOT_URI"),
            around.text("DMLC_PS_ROOT_PORT"),
        );
        values.job = host
            .zip(port)
            .map(|(host, port)| format!("dmlc-{host}-{port}"));
        values.otherwise = "DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT are not set";
        Ok(())
    });
    if let Evidence::Decided(Err(DetectError::Incomplete { remedy, .. })) = &mut sight.says {
        "Set DMLC_WORKER_ID for workers; start servers with --rank N (from 0) and --size (servers \
         and workers together); there is no scheduler: rank 0 is it"
            .clone_into(remedy);
    }
    Some(sight)
}

/// Returns the number of tasks on this node: entry `SLURM_NODEID` of a list like `2(x2),1`; `None` if a
/// variable is unset or wrong.
fn slurm_local_size(around: &LaunchEnv<'_>) -> Option<u32> {
    let node = around.number("SLURM_NODEID", LAUNCHED_MAX).ok()??;
    hostlist::tasks_of(around.text("SLURM_STEP_TASKS_PER_NODE")?, node)
}

/// Returns the hosts of the Slurm step; empty if the list is unset or does not parse, which is not worth a
/// failure.
fn slurm_hosts(around: &LaunchEnv<'_>) -> Vec<String> {
    let list = around.text("SLURM_STEP_NODELIST");
    let hosts = list.and_then(|list| hostlist::expand(list, HOSTLIST_HOSTS_MAX).ok());
    hosts.unwrap_or_default()
}

/// Converts a job's name to a file name of at most 128 plain ASCII characters; others become `_`.
pub(super) fn file_name(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let plain: String = name
        .chars()
        .map(|c| if is_plain(c) { c } else { '_' })
        .take(128)
        .collect();
    match plain.as_str() {
        "" | "." | ".." => "_".into(),
        _ => plain,
    }
}
