//! The transport that a job gets, and the error if the requested one is not available.

use std::time::Duration;

use tidewater::JoinOptions;
use tidewater::connect::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
use tidewater::link::ServerLink as _;
use tidewater_lanes::fabric::{SPIN, TransportKind};
use tidewater_lanes::wake::OsParker;
use tidewater_runtime::clock::Deadline;

use crate::by_hand::Cluster;
use crate::rig::{Run, command, data, new_mark, output, tidewater, trainer};

/// A device that no host has, so that hosts with and without RDMA give the same error.
const NO_SUCH: &str = "nosuch0";

#[test]
fn a_job_that_must_have_rdma_fails_and_says_what_is_missing() {
    let options = ["--transport", "verbs", "--rdma-device", NO_SUCH];
    let ended = Run::train(&options, &[]).end();
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    for part in ["RDMA was asked for", "server 0", "--transport auto or tcp"] {
        assert!(ended.stderr.contains(part), "no {part:?}: {}", ended.stderr);
    }
}

#[test]
fn a_cluster_inside_a_program_says_that_it_has_no_rdma() {
    let (train, _) = data();
    let arguments = ["lr", "--train", &train, "--transport", "verbs"];
    let done = output(trainer(), &arguments);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(3), "{said}");
    assert!(said.contains("inside the process"), "{said}");
}

#[test]
fn what_is_no_device_is_a_wrong_command_line_or_environment() {
    let done = output(&tidewater(), &["run", "--rdma-device", "a/b", "--", "true"]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains("as in mlx5_0:1"), "{said}");

    let cluster = Cluster::coordinator(1);
    let done = cluster
        .server(0)
        .env("TIDEWATER_RDMA_DEVICE", "a/b")
        .output();
    let said = String::from_utf8_lossy(&done.unwrap().stderr).into_owned();
    assert!(said.contains("TIDEWATER_RDMA_DEVICE"), "{said}");
    let (mark, _) = new_mark();
    let mut serve = command(&tidewater(), &mark);
    serve
        .args(["serve", "--token-file"])
        .arg(cluster.token_file());
    let done = serve.env("TIDEWATER_RDMA_DEVICE", "a/b").output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(3), "{said}");
    assert!(said.contains("TIDEWATER_RDMA_DEVICE"), "{said}");
}

#[test]
fn what_is_no_timeout_is_a_wrong_command_line_or_environment() {
    let run = ["run", "--rdma-timeout", "23", "--", "true"];
    for arguments in [&run[..], &["server", "--rdma-timeout", "7"]] {
        let done = output(&tidewater(), arguments);
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{said}");
        assert!(said.contains("use 8 to 22"), "{said}");
    }
    let cluster = Cluster::coordinator(1);
    let wrong = ("TIDEWATER_RDMA_TIMEOUT", "7");
    let done = cluster.server(0).env(wrong.0, wrong.1).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        !done.status.success() && said.contains("TIDEWATER_RDMA_TIMEOUT"),
        "{said}"
    );
    let (mark, _) = new_mark();
    let mut serve = command(&tidewater(), &mark);
    serve
        .args(["serve", "--token-file"])
        .arg(cluster.token_file());
    let done = serve.env(wrong.0, wrong.1).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(3), "{said}");
    assert!(said.contains("TIDEWATER_RDMA_TIMEOUT"), "{said}");
}

#[test]
fn a_worker_takes_its_timeout_from_the_environment_whoever_names_its_job() {
    let cluster = Cluster::coordinator(1);
    let file = cluster.token_file().to_owned();
    let job = |timeout: &str, coordinator: Option<&str>| {
        let said = [
            ("TIDEWATER_COORDINATOR", "127.0.0.1:1".into()),
            ("TIDEWATER_RANK", "0".into()),
            ("TIDEWATER_WORKERS", "1".into()),
            ("TIDEWATER_SERVERS", "1".into()),
            ("TIDEWATER_TOKEN_FILE", file.clone().into_os_string()),
            ("TIDEWATER_RDMA_TIMEOUT", timeout.into()),
        ];
        let options = JoinOptions {
            coordinator: coordinator.map(str::to_owned),
            token_file: coordinator.map(|_| file.clone()),
            ..JoinOptions::default()
        };
        options
            .join_from_vars(said.map(|(name, value)| (name.into(), value)))
            .map(|joined| joined.into_job().unwrap())
    };
    for named in [None, Some("127.0.0.1:1")] {
        for (said, exponent) in [("9", 9), ("", 14)] {
            assert_eq!(
                job(said, named).unwrap().fabric().timeout_exponent(),
                exponent
            );
        }
        let wrong = job("23", named).unwrap_err().to_string();
        assert!(wrong.contains("TIDEWATER_RDMA_TIMEOUT"), "{wrong}");
    }
}

/// Transport of a session with server 0, for a client that acts as if on another host.
fn between_hosts(cluster: &Cluster, rdma_device: Option<&str>) -> TransportKind {
    let deadline = Deadline::after(Duration::from_secs(60));
    let mut join = JoinConfig::new(&cluster.address, cluster.token());
    join.rank = Some(0);
    let (mut coordinator, joined) = NetCoordinatorLink::join(&join, deadline).unwrap();
    let members = coordinator.wait_servers(joined.servers_expected, deadline);
    let members = members.unwrap();
    let mut server = members.servers[0].clone();
    server.host_id = "another".into();
    let mut config = ConnectConfig::new(join.token.clone(), coordinator.cluster(), 0);
    config.epoch = members.epoch;
    config.workers = 1;
    config.rdma_device = rdma_device.map(|name| name.parse().unwrap());
    let mut parker = OsParker::new(SPIN).unwrap();
    let opened = NetServerLink::open(&server, &config, &mut parker, deadline);
    let (link, lanes) = opened.unwrap();
    assert!(!lanes.is_empty());
    link.transport()
}

#[test]
fn between_hosts_without_rdma_a_job_goes_over_tcp() {
    let cluster = Cluster::start(1);
    assert_eq!(between_hosts(&cluster, Some(NO_SUCH)), TransportKind::Tcp);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn between_hosts_with_rdma_a_job_goes_over_verbs() {
    let cluster = Cluster::start(1);
    assert_eq!(between_hosts(&cluster, None), TransportKind::Verbs);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_job_trains_over_verbs() {
    let options = ["--servers", "2", "--workers", "2", "--transport", "verbs"];
    let said = Run::train(&options, &["--epochs", "2"]).succeeds();
    assert!(said.contains("epoch 2/2"), "{said}");
}
