//! The two commands as a user runs them.

use std::process::{Command, Output};

use serde_json::Value;

use super::sound;

fn tidewater(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidewater"));
    command.args(arguments).output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

/// The plan of a job: numbers for people and programs, its limits, what is slow, and what is wrong with it.
#[test]
fn plan_computes_the_cost_of_a_job() {
    let arguments = [
        "doctor",
        "--plan",
        "--servers",
        "16",
        "--appliers",
        "4",
        "--processes",
        "1024",
        "--processes-per-host",
        "64",
    ];
    let output = tidewater(&arguments);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let rows = [
        ["sessions", "1024", "16", "1024"],
        ["lanes", "4096", "64", "4096"],
        ["queue pairs", "8192", "128", "8192"],
    ];
    for [what, numbers @ ..] in rows {
        let line = text.lines().find(|line| line.starts_with(what)).unwrap();
        let told: Vec<_> = line[what.len()..].split_whitespace().collect();
        assert_eq!(told, numbers, "{what}: {text}");
    }
    assert!(text.contains("65536 sessions of a server"), "{text}");
    assert!(
        text.contains("warn a server has 8192 queue pairs"),
        "{text}"
    );
    let told = json(&tidewater(&[&arguments[..], &["--json"]].concat()));
    assert_eq!(
        (&told["format"], &told["server_lanes"]),
        (&1.into(), &4096.into())
    );
    assert_eq!(told["attach_seconds"], 20.48);
    assert_eq!(told["exceeds"], serde_json::json!([]));
    // More sessions than a server has, and clients that wait too briefly.
    let too_many = [&arguments[..], &["--threads", "65"]].concat();
    let output = tidewater(&too_many);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("FAIL sessions of a server: 66560 of at most 65536"),
        "{text}"
    );
    assert!(text.contains("raise --join-timeout"), "{text}");
}

#[test]
fn plan_refuses_impossible_sizes() {
    for (wrong, named) in [
        (&["doctor", "--plan"][..], "--appliers"),
        (
            &["doctor", "--plan", "--appliers", "1", "--threads", "0"],
            "--threads",
        ),
        (
            &[
                "doctor",
                "--plan",
                "--appliers",
                "1",
                "--ring-bytes",
                "5000",
            ],
            "power of two",
        ),
        (
            &[
                "doctor",
                "--plan",
                "--appliers",
                "1",
                "--lanes-per-second",
                "0",
            ],
            "rate",
        ),
        (&["doctor", "--processes", "2"], "--plan"),
    ] {
        let output = tidewater(wrong);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && error.contains(named),
            "{wrong:?}: {error}"
        );
    }
}

#[test]
fn info_tells_people_and_programs_the_same() {
    let fake = sound();
    let root = fake.root().to_str().unwrap();
    let arguments = [
        "info",
        "--root",
        root,
        "--appliers",
        "2",
        "--listen",
        "10.0.1.7",
    ];
    let output = tidewater(&arguments);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(
        text.contains("server 0 (a) on 4,6: nearest to the NIC"),
        "{text}"
    );
    let told = json(&tidewater(&[&arguments[..], &["--json"]].concat()));
    assert_eq!(told["format"], 1);
    assert_eq!(told["machine"]["host"], "node17");
    assert_eq!(told["machine"]["memlock"], "unlimited");
    assert_eq!(told["machine"]["open_files"]["at"], 20_000);
    let rdma = &told["machine"]["topology"]["rdmas"][0];
    assert_eq!(rdma["node_guid"], "0a00:00ff:fe00:0001");
    assert_eq!(rdma["ports"][0]["gids"][3]["gid"], "::ffff:10.0.1.7");
    assert_eq!(rdma["ports"][0]["gids"][3]["kind"], "RoCE v2");
    assert_eq!(
        (&rdma["ports"][0]["state"], &rdma["ports"][0]["mtu"]),
        (&"active".into(), &4096.into())
    );
    assert_eq!(
        told["chosen"]["servers"][0]["cpus"],
        serde_json::json!([4, 6])
    );
    assert_eq!(told["chosen"]["servers"][0]["node"], 1);
    assert_eq!(told["chosen"]["pages"]["pages"], "2M");
    assert_eq!(told["chosen"]["near"]["device"], "mlx5_0");
}

#[test]
fn doctor_ends_with_1_if_something_failed() {
    let fake = sound();
    let root = fake.root().to_str().unwrap().to_owned();
    let arguments = [
        "doctor",
        "--root",
        &root,
        "--appliers",
        "2",
        "--listen",
        "10.0.1.7",
    ];
    let output = tidewater(&arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let fake = fake.without("sys/class/infiniband");
    let output = tidewater(&arguments);
    assert_eq!(
        output.status.code(),
        Some(0),
        "a warning is no failure: {output:?}"
    );
    let output = tidewater(&[&arguments[..], &["--rdma", "--json"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let told = json(&output);
    assert_eq!(
        (&told["format"], &told["host"]),
        (&1.into(), &"node17".into())
    );
    let device = &told["checks"][0];
    assert_eq!(
        (&device["name"], &device["verdict"]),
        (&"rdma-device".into(), &"fail".into())
    );
    assert!(device["remedies"].as_array().unwrap().len() >= 2);
    drop(fake);
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let fake = sound();
    let root = fake.root().to_str().unwrap();
    for command in ["info", "doctor"] {
        let output = tidewater(&[command, "--root", root, "--nic", "mlx5_7"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(
            said.contains("\"mlx5_7\"") && said.contains("mlx5_0"),
            "{said}"
        );
        let wrong = tidewater(&[command, "--hugepages", "3M"]);
        let said = String::from_utf8(wrong.stderr).unwrap();
        assert_eq!(wrong.status.code(), Some(2), "{said}");
        assert!(said.contains("use auto, 2M, 1G or off"), "{said}");
    }
}

#[test]
fn this_machine_can_be_drawn_and_checked() {
    let output = tidewater(&["info"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(text.contains("cores") && text.contains("lo "), "{text}");
    let output = tidewater(&["doctor", "--json"]);
    let code = output.status.code();
    let told = json(&output);
    let failed = |check: &&Value| check["verdict"] == "fail";
    let failures = told["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(failed)
        .count();
    assert_eq!(code, Some(i32::from(failures > 0)), "{told}");
}

/// The reader of the pipe has closed it, as with `| head -1`.
#[test]
fn a_closed_pipe_is_no_failure() {
    let fake = sound();
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidewater"))
        .args(["info", "--root", fake.root().to_str().unwrap()])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    assert_eq!(output.status.code(), Some(0));
}
