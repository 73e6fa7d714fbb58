//! `tidewater run` with real processes: exit codes, signals, output, and no process left behind.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests are tests

mod ends;
mod harness;
mod limits;
mod output;

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use harness::{AWAIT, COORDINATOR, Job, SERVER};
use tidewater_cli::launcher::{self, LaunchError, Prefix, ProcessCommand, RunConfig};

fn config(worker: &str) -> RunConfig {
    let executable = PathBuf::from(env!("CARGO_BIN_EXE_tidewater"));
    let mut config = RunConfig::new(executable, ProcessCommand::shell(worker));
    config.server = ProcessCommand::shell(SERVER);
    config.coordinator = ProcessCommand::shell(COORDINATOR);
    config
}

#[test]
fn every_child_is_told_its_place() {
    let tell = "echo $TIDEWATER_ROLE $TIDEWATER_RANK/$TIDEWATER_LOCAL_RANK of \
                $TIDEWATER_WORKERS+$TIDEWATER_SERVERS $TIDEWATER_TRANSPORT \
                $TIDEWATER_RDMA_DEVICE $TIDEWATER_RDMA_TIMEOUT $TIDEWATER_APPLIERS at ${TIDEWATER_COORDINATOR:-nowhere} \
                mode $(stat -L -c %a $TIDEWATER_TOKEN_FILE) \
                digits $(head -c 99 $TIDEWATER_TOKEN_FILE | tr -d -c 0-9a-f | wc -c)";
    let worker = format!("{AWAIT} await 0 1; {tell}");
    let options = "-s 2 -w 3 --transport tcp --rdma-device rxe0:1 --rdma-timeout 9 --appliers 4"
        .split(' ')
        .collect::<Vec<_>>();
    let job = Job {
        coordinator: &format!("{tell}; {COORDINATOR}"),
        server: &format!("{tell}; : > $TEST_FOLDER/$TIDEWATER_RANK; {SERVER}"),
        ..Job::of(&options, &worker)
    };
    let ended = job.end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let mut lines: Vec<&str> = ended.stdout.lines().chain(ended.stderr.lines()).collect();
    lines.sort_unstable();
    let end = "of 3+2 tcp rxe0:1 9 4 at 127.0.0.1:7 mode 600 digits 64";
    let expected = [
        "[coordinator] coordinator 0/0 of 3+2 tcp rxe0:1 9 4 at nowhere mode 600 digits 64"
            .to_owned(),
        format!("[server 0] server 0/0 {end}"),
        format!("[server 1] server 1/1 {end}"),
        format!("worker 0/0 {end}"),
        format!("worker 1/1 {end}"),
        format!("worker 2/2 {end}"),
    ];
    assert_eq!(lines, expected);
}

/// A launcher that is a worker of another job passes no setting of that job on. Its servers and its
/// coordinator have a descriptor of their own to report that they are ready.
#[test]
fn nested_run_hides_the_outer_job() {
    let tell = "echo $TIDEWATER_ROLE ${TIDEWATER_TOKEN_FD-unset} ${TIDEWATER_READY_FD-unset} \
                ${TIDEWATER_COORDINATOR-unset}";
    let worker = format!("{AWAIT} await server; {tell}");
    let job = Job {
        coordinator: &format!("{tell}; {COORDINATOR}"),
        server: &format!("{tell}; : > $TEST_FOLDER/server; {SERVER}"),
        env: &[
            ("TIDEWATER_TOKEN_FD", "77"),
            ("TIDEWATER_READY_FD", "78"),
            ("TIDEWATER_COORDINATOR", "127.0.0.1:9"),
        ],
        ..Job::of(&["-s", "1"], &worker)
    };
    let ended = job.end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let mut lines: Vec<&str> = ended.stdout.lines().chain(ended.stderr.lines()).collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "[coordinator] coordinator unset 0 unset",
            "[server 0] server unset 0 127.0.0.1:7",
            "worker unset unset 127.0.0.1:7",
        ]
    );
}

#[test]
fn the_library_runs_a_job_too() {
    let (out, err) = (
        tempfile::NamedTempFile::new().unwrap(),
        tempfile::tempfile().unwrap(),
    );
    let mut config = config("echo rank $TIDEWATER_RANK; exit $TIDEWATER_RANK");
    config.workers = 2;
    config.prefix = Prefix::Always;
    config.stdout = Some(OwnedFd::from(out.reopen().unwrap()));
    config.stderr = Some(OwnedFd::from(err));
    let outcome = launcher::run(config).unwrap();
    assert_eq!((outcome.code(), outcome.output_lost), (1, 0));
    let text = std::fs::read_to_string(out.path()).unwrap();
    assert!(text.contains("[worker 1] rank 1\n"), "{text}");
}

#[test]
fn what_cannot_run_is_refused_before_anything_starts() {
    let mut missing = config("");
    missing.worker.program = "tidewater-no-such-program".into();
    let error = launcher::run(missing).unwrap_err();
    assert!(
        matches!(error, LaunchError::ProgramMissing { .. }) && error.code() == 2,
        "{error}"
    );
    assert!(
        error.to_string().contains("tidewater-no-such-program"),
        "{error}"
    );

    let mut plain = config("");
    plain.worker.program = "/etc/passwd".into();
    let error = launcher::run(plain).unwrap_err();
    assert!(error.to_string().contains("chmod +x"), "{error}");

    let mut none = config("");
    none.workers = 0;
    assert!(matches!(
        launcher::run(none),
        Err(LaunchError::Counts { workers: 0, .. })
    ));
    let mut many = config("");
    many.workers = u32::MAX;
    assert!(matches!(
        launcher::run(many),
        Err(LaunchError::TooMany { .. })
    ));
}

#[test]
fn a_script_whose_interpreter_is_missing_says_so() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut config = config("");
    config.worker = ProcessCommand::new(&script, [""; 0]);
    config.stderr = Some(tempfile::tempfile().unwrap().into());
    let outcome = launcher::run(config).unwrap();
    assert_eq!(outcome.code(), 127);
    let message = outcome.failure.unwrap().to_string();
    assert!(
        message.contains("worker 0") && message.contains("#! line"),
        "{message}"
    );
}
