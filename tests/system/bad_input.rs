//! An error is reported once, with the input's name, the remedy and the right exit code.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tidewater::{ClientError, PullOptions, SyncMode, TableBuilder};
use tidewater_launch::TransportChoice;
use tidewater_protocol::table::PushOp;
use tidewater_runtime::clock::{self, Deadline};

use crate::by_hand::Cluster;
use crate::proc::Process;
use crate::rig::{Run, command, new_mark, output, tidewater, trainer};

/// Checks that a program ended with `code` and that its output has all of `parts`.
fn check(done: &Output, code: i32, parts: &[&str]) {
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(code), "{said}");
    for part in parts {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_taken_port() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let cluster = Cluster::coordinator(1);
    let mut server = cluster.server(0);
    let due = [
        &address[..],
        "Address already in use",
        "choose another port",
    ];
    check(
        &server.args(["--listen", &address]).output().unwrap(),
        3,
        &due,
    );

    let token = cluster.token_file();
    let arguments = [
        "coordinator",
        "--servers",
        "1",
        "--workers",
        "1",
        "--listen",
    ];
    let rest = [&address, "--token-file", token.to_str().unwrap()];
    let done = output(&tidewater(), &[&arguments[..], &rest].concat());
    check(&done, 3, &due);
}

#[test]
fn a_missing_coordinator() {
    // Bound and closed: no process listens there.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let mut cluster = Cluster::coordinator(1);
    cluster.address.clone_from(&address);
    let began = clock::now();
    let mut options = cluster.options(TransportChoice::Auto);
    options.join_timeout = Some(Duration::from_millis(700));
    let job = options.join().unwrap().into_job().unwrap();
    let error = job.client(SyncMode::Asp).unwrap_err();
    let took = began.elapsed();
    assert!(matches!(error, ClientError::Control { .. }), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
    assert!(
        took >= Duration::from_millis(600),
        "it did not wait: {took:?}"
    );

    let mut server = cluster.server(0);
    let done = server.args(["--join-timeout", "1s"]).output().unwrap();
    check(&done, 4, &[&address, "coordinator"]);
}

#[test]
fn a_wrong_token() {
    let mut cluster = Cluster::coordinator(1);
    let arguments = cluster.server_arguments(0, &cluster.other_token_file());
    let (mark, _) = new_mark();
    let done = command(&tidewater(), &mark).args(arguments).output();
    check(&done.unwrap(), 4, &["coordinator", "token"]);

    // A secret that every user could read is rejected.
    let file = cluster.token_file();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let done = cluster.server(0).output().unwrap();
    check(&done, 3, &["token", "chmod 600"]);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();

    // No other process is disturbed.
    let server = cluster.server(0).spawn().unwrap();
    cluster.servers.push(server);
    cluster.client(TransportChoice::Auto).finish().unwrap();
}

#[test]
fn a_bad_line_of_data() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("bad.libsvm");
    let mut text = "1 1:1 2:0.5\n-1 3:1\n".repeat(50);
    text.push_str("1 4:1 banana\n");
    text.push_str(&"-1 3:1\n".repeat(50));
    fs::write(&path, text).unwrap();
    let program = [
        trainer().to_str().unwrap(),
        "lr",
        "--train",
        path.to_str().unwrap(),
    ];
    let ended = Run::start(&["--servers", "1", "--workers", "2"], &program).end();
    assert_eq!(ended.code, 5, "{}", ended.stderr);
    let place = "bad.libsvm:101:";
    assert!(ended.stderr.contains(place), "no {place}: {}", ended.stderr);
    assert!(ended.stderr.contains("banana"), "{}", ended.stderr);
}

#[test]
fn a_stopped_and_a_dead_server() {
    stop_and_kill_a_server(&[TransportChoice::Shm, TransportChoice::Tcp]);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_stopped_and_a_dead_server_over_verbs() {
    stop_and_kill_a_server(&[TransportChoice::Verbs]);
}

fn stop_and_kill_a_server(transports: &[TransportChoice]) {
    let each = |signal| transports.iter().map(move |&transport| (transport, signal));
    for (transport, signal) in each(Signal::STOP).chain(each(Signal::KILL)) {
        let mut cluster = Cluster::start(2);
        let mut client = cluster.client(transport);
        let spec = TableBuilder::rows::<f32>("rows", 100, 1);
        let table = client.create_table::<f32>(spec.spec()).unwrap();
        let keys: Vec<u64> = (0..100).collect();
        cluster.server_processes()[1].signal(signal);
        if signal == Signal::KILL {
            cluster.servers[1].wait().unwrap();
        }
        // A stop takes effect when each thread next leaves the kernel: until then it may serve.
        std::thread::sleep(Duration::from_millis(500));
        client.set_timeout(Duration::from_secs(2));
        let began = clock::now();
        let pushed = client.push_rows(&table, &keys, &[1.0; 100], PushOp::Sum);
        let error = pushed
            .and_then(|ticket| client.wait_applied(&ticket))
            .unwrap_err();
        let took = began.elapsed();
        println!("{transport:?}, {signal:?}: {error}, after {took:?}");
        assert!(error.to_string().contains("server 1"), "{error}");
        // The deadline, plus time for a busy machine.
        assert!(took < Duration::from_secs(12), "{took:?}");
        if signal == Signal::STOP {
            cluster.server_processes()[1].signal(Signal::CONT);
            client.set_timeout(Duration::from_secs(60));
            let pushed = client.push_rows(&table, &keys, &[1.0; 100], PushOp::Sum);
            client.wait_applied(&pushed.unwrap()).unwrap();
            let mut out = [0.0; 100];
            let options = PullOptions::default();
            client.pull_rows(&table, &keys, &mut out, options).unwrap();
            // The push in flight at the deadline was not lost.
            assert_eq!(out, [2.0; 100]);
        }
    }
}

/// A job ends when one of its servers dies. A client that only waits for another server gets the dead
/// one's name, also in a call that is too short for a periodic check.
#[test]
fn the_server_that_died_is_named_and_not_the_one_that_is_waited_for() {
    let cluster = Cluster::start(2);
    let mut client = cluster.client(TransportChoice::Shm);
    let spec = TableBuilder::rows::<f32>("rows", 100, 1).partitions(1);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    let [waited_for, dies] = &cluster.server_processes()[..] else {
        panic!("two servers");
    };
    waited_for.signal(Signal::STOP);
    dies.signal(Signal::KILL);
    client.set_timeout(Duration::from_millis(200));
    // Until the coordinator has noticed it.
    let deadline = Deadline::after(Duration::from_secs(20));
    loop {
        let pushed = client.push_rows(&table, &[0], &[1.0], PushOp::Sum);
        let applied = pushed.and_then(|ticket| client.wait_applied(&ticket));
        // A stop takes effect when each thread next leaves the kernel: until then it may serve.
        let said = applied.map_or_else(|error| error.to_string(), |()| "server 0 serves".into());
        if said.contains("server 1") {
            break;
        }
        assert!(said.contains("server 0") && !deadline.passed(), "{said}");
    }
}

/// Each program reports it, and a launcher once for all its children.
#[test]
fn a_misspelt_variable() {
    let (mark, _) = new_mark();
    let nowhere = ["--coordinator", "127.0.0.1:1"];
    for (program, arguments) in [
        (tidewater(), &["run", "--workers", "3", "--", "true"][..]),
        (tidewater(), &["coordinator"]),
        (
            tidewater(),
            &["server", "--number", "0", nowhere[0], nowhere[1]],
        ),
        (tidewater(), &["serve"]),
        (trainer().to_owned(), &["lr", "--train", "absent"]),
    ] {
        let mut command = command(&program, &mark);
        command.args(arguments).env("TIDEWATER_WORKER", "4");
        let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
        let times = said.matches("TIDEWATER_WORKER").count();
        assert_eq!(times, 1, "{arguments:?}: {said}");
    }
}

/// The limit of locked memory is lower than `--mlock` needs.
#[test]
fn a_low_limit_of_locked_memory() {
    let cluster = Cluster::coordinator(1);
    let (mark, _) = new_mark();
    let mut limited = command("prlimit".as_ref(), &mark);
    limited.arg("--memlock=65536:65536");
    if rustix::process::geteuid().is_root() {
        // A process with this capability has no limit.
        limited.args(["setpriv", "--bounding-set=-ipc_lock"]);
    }
    let arguments = cluster.server_arguments(0, &cluster.token_file());
    limited.arg(tidewater()).args(arguments);
    let due = ["cannot lock", "limit is 65536 bytes", "ulimit -l unlimited"];
    check(
        &limited.env("TIDEWATER_MLOCK", "1").output().unwrap(),
        3,
        &due,
    );
    limited.env_remove("TIDEWATER_MLOCK").arg("--mlock");
    check(&limited.output().unwrap(), 3, &due);
}

/// More than any pool holds.
const CAPACITY: [&str; 2] = ["--capacity", "4398046511104"];

#[test]
fn hugepages_that_are_not_there() {
    let cluster = Cluster::coordinator(1);
    for (size, pool) in [("2M", "hugepages-2048kB"), ("1G", "hugepages-1048576kB")] {
        let mut server = cluster.server(0);
        server.args(CAPACITY).args(["--hugepages", size]);
        let asked = format!("--hugepages {size}: --capacity twice takes");
        let done = server.output().unwrap();
        check(&done, 3, &[&asked, "can be had", "--hugepages auto"]);
        // The command to type, if the kernel has such pages.
        if fs::exists(format!("/sys/kernel/mm/hugepages/{pool}")).unwrap() {
            check(
                &done,
                3,
                &["as root, echo ", &format!("{pool}/nr_hugepages")],
            );
        }
    }
}

/// A user that requests hugepages on a host without them gets the cause and the remedy once. A user
/// without a page setting gets no warning.
#[test]
fn ordinary_pages_warned_of_only_when_chosen() {
    use std::io::{BufRead as _, BufReader};
    let cluster = Cluster::coordinator(1);
    let token = cluster.token_file();
    let said = |more: &[&str]| {
        let (mark, _) = new_mark();
        let mut serve = command(&tidewater(), &mark);
        serve
            .args(["serve", "--servers", "2", "--token-file"])
            .arg(&token);
        serve.args(CAPACITY).args(more);
        let mut serve = serve
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let stdout = serve.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut ready).unwrap();
        assert!(ready.contains("ready"), "{ready}");
        Process::of(&serve).signal(Signal::TERM);
        let done = serve.wait_with_output().unwrap();
        check(&done, 0, &[]);
        String::from_utf8(done.stderr).unwrap()
    };
    assert_eq!(said(&[]), "");
    let told = said(&["--hugepages", "auto"]);
    assert_eq!(
        told.matches("WARN ordinary pages: --capacity twice")
            .count(),
        1,
        "{told}"
    );
    assert_eq!(said(&["--hugepages", "off"]), "");
}

/// A job without user settings: no component prints a message.
#[test]
fn default_run_prints_nothing() {
    let done = Run::start(&["--servers", "2", "--workers", "4"], &["true"]).end();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
}

#[test]
fn a_network_card_that_is_not_there() {
    let cluster = Cluster::coordinator(1);
    let mut server = cluster.server(0);
    let due = [
        "--nic: there is no network or RDMA device \"mlx5_77\"",
        "there are: ",
        "lo",
    ];
    check(
        &server.args(["--nic", "mlx5_77"]).output().unwrap(),
        3,
        &due,
    );
    let by_variable = cluster.server(0).env("TIDEWATER_NIC", "mlx5_77").output();
    check(&by_variable.unwrap(), 3, &due);
    let (mark, _) = new_mark();
    let mut serve = command(&tidewater(), &mark);
    serve
        .args(["serve", "--nic", "mlx5_77", "--token-file"])
        .arg(cluster.token_file());
    check(&serve.output().unwrap(), 3, &due);
}

#[test]
fn a_network_card_that_no_server_of_a_job_has() {
    let ended = Run::start(&["--nic", "mlx5_77"], &["sleep", "60"]).end();
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    assert!(
        ended
            .stderr
            .contains("there is no network or RDMA device \"mlx5_77\""),
        "{}",
        ended.stderr
    );
}

/// Servers in launched processes read the variables too. An impossible value is named.
#[test]
fn a_lock_that_is_neither_on_nor_off() {
    let cluster = Cluster::coordinator(1);
    let done = cluster.server(0).env("TIDEWATER_MLOCK", "yes").output();
    check(&done.unwrap(), 3, &["TIDEWATER_MLOCK", "yes"]);
}

/// Different settings of one worker end the run on all workers at once, by the flag's name and both
/// ranks. Otherwise the workers would wait for each other.
#[test]
fn workers_that_were_told_something_else() {
    let scratch = tempfile::tempdir().unwrap();
    let data = scratch.path().join("rows.libsvm");
    fs::write(&data, "1 1:1\n-1 2:1\n1 1:1 2:1\n-1 2:2\n").unwrap();
    let train = format!(
        "{} lr --epochs 1 --train {}",
        trainer().display(),
        data.display()
    );
    for (only, flag, says) in [
        (
            format!("--test {}", data.display()),
            "--test",
            "given one and worker 1 none",
        ),
        ("--batch 2".to_owned(), "--batch", "given 2 and worker 1 "),
        (
            "--load /nowhere".to_owned(),
            "--load",
            "given one and worker 1 none",
        ),
    ] {
        let script =
            format!("if [ $TIDEWATER_RANK = 0 ]; then exec {train} {only}; else exec {train}; fi");
        let run = [
            "run",
            "-s",
            "1",
            "-w",
            "2",
            "--capacity",
            "16777216",
            "--",
            "sh",
            "-c",
            &script,
        ];
        let began = clock::now();
        let done = output(&tidewater(), &run);
        check(
            &done,
            2,
            &[flag, "differs", "worker 0 was", says, "the same"],
        );
        assert!(began.elapsed() < Duration::from_secs(20), "{only}");
    }
}
