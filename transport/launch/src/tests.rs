//! Tests of valid and invalid environments.

use super::*;

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

const HEX: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn token_file(text: &str, mode: u32) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.as_file()
        .set_permissions(std::fs::Permissions::from_mode(mode))
        .unwrap();
    file
}

fn job(changes: &[(&str, &str)], token: &str) -> Result<Option<JobEnv>, EnvError> {
    let mut vars = vec![
        ("TIDEWATER_COORDINATOR", "[::1]:4000"),
        ("TIDEWATER_RANK", "1"),
        ("TIDEWATER_WORKERS", "3"),
        ("TIDEWATER_SERVERS", "2"),
        ("TIDEWATER_TOKEN_FILE", token),
    ];
    vars.retain(|(name, _)| !changes.iter().any(|(changed, _)| changed == name));
    vars.extend_from_slice(changes);
    JobEnv::from_vars(
        vars.into_iter()
            .map(|(name, value)| (name.into(), value.into())),
    )
}

#[test]
fn a_worker_reads_its_place() {
    let file = token_file(&format!("{HEX}\n"), 0o600);
    let path = file.path().to_str().unwrap();
    let env = job(
        &[
            ("TIDEWATER_TRANSPORT", "verbs"),
            ("TIDEWATER_RDMA_DEVICE", "rxe0:1"),
            ("TIDEWATER_RDMA_TIMEOUT", "10"),
            ("TIDEWATER_APPLIERS", "4"),
        ],
        path,
    );
    let env = env.unwrap().unwrap();
    assert_eq!(
        (env.role, env.rank, env.workers, env.servers),
        (Role::Worker, 1, 3, 2)
    );
    assert_eq!(env.coordinator.as_deref(), Some("[::1]:4000"));
    assert_eq!(
        (env.transport, env.appliers),
        (TransportChoice::Verbs, Some(4))
    );
    assert_eq!(env.rdma_device.unwrap().as_str(), "rxe0:1");
    assert_eq!(env.fabric.timeout_exponent(), 10);
    assert_eq!(env.token.to_hex(), HEX);
    assert_eq!(
        format!("{:?}", env.token),
        "JobToken(..)",
        "a log must not show the token"
    );
}

#[test]
fn alone_is_not_an_error() {
    assert!(
        JobEnv::from_vars([("HOME".into(), "/".into())])
            .unwrap()
            .is_none()
    );
    assert!(
        JobEnv::from_vars([("TIDEWATER_ROLE".into(), "".into())])
            .unwrap()
            .is_none()
    );
}

#[test]
fn only_the_coordinator_may_lack_an_address_and_a_rank() {
    let file = token_file(HEX, 0o600);
    let path = file.path().to_str().unwrap();
    let without = |role| {
        let changes = [
            ("TIDEWATER_ROLE", role),
            ("TIDEWATER_COORDINATOR", ""),
            ("TIDEWATER_RANK", ""),
        ];
        job(&changes, path)
    };
    assert_eq!(without("coordinator").unwrap().unwrap().coordinator, None);
    let error = without("server").unwrap_err();
    assert!(
        matches!(
            error,
            EnvError::Missing {
                name: "TIDEWATER_RANK",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn wrong_values_name_the_variable_and_the_remedy() {
    let file = token_file(HEX, 0o600);
    let path = file.path().to_str().unwrap();
    let wrong = [
        ("TIDEWATER_RANK", "3"),
        ("TIDEWATER_RANK", "-1"),
        ("TIDEWATER_RANK", "one"),
        ("TIDEWATER_WORKERS", "0"),
        ("TIDEWATER_SERVERS", "99999999999999999999"),
        ("TIDEWATER_COORDINATOR", "nowhere"),
        ("TIDEWATER_COORDINATOR", "host:0"),
        ("TIDEWATER_COORDINATOR", "ho st:1"),
        ("TIDEWATER_TRANSPORT", "pigeon"),
        ("TIDEWATER_RDMA_DEVICE", "../../etc"),
        ("TIDEWATER_RDMA_TIMEOUT", "23"),
        ("TIDEWATER_RDMA_RETRIES", "8"),
        ("TIDEWATER_RDMA_PKEY", "0x8000"),
        ("TIDEWATER_ROLE", "boss"),
        ("TIDEWATER_APPLIERS", "65"),
        ("TIDEWATER_LOCAL_RANK", "3"),
    ];
    for (name, value) in wrong {
        let error = job(&[(name, value)], path).unwrap_err();
        assert!(matches!(&error, EnvError::Invalid { name: named, .. } if *named == name));
        assert!(
            error.to_string().contains("Correct the variable"),
            "{error}"
        );
    }
    for name in [
        "TIDEWATER_RANK",
        "TIDEWATER_WORKERS",
        "TIDEWATER_TOKEN_FILE",
    ] {
        let error = job(&[(name, "")], path).unwrap_err();
        assert!(matches!(&error, EnvError::Missing { name: named, .. } if *named == name));
    }
}

#[test]
fn a_token_that_others_can_read_is_refused() {
    for mode in [0o640, 0o604, 0o660, 0o602] {
        let file = token_file(HEX, mode);
        let error = job(&[], file.path().to_str().unwrap()).unwrap_err();
        assert!(
            matches!(error, EnvError::Token(TokenError::Exposed { .. })),
            "{mode:o}"
        );
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
}

#[test]
fn malformed_tokens_are_refused() {
    let too_long = HEX.repeat(3);
    for text in ["", "short", &HEX[1..], &HEX.replace('0', "g"), &too_long] {
        let file = token_file(text, 0o600);
        let error = job(&[], file.path().to_str().unwrap()).unwrap_err();
        assert!(
            matches!(error, EnvError::Token(TokenError::Malformed { .. })),
            "{text}"
        );
        assert!(
            text.len() < 64 || !error.to_string().contains(&HEX[1..]),
            "quotes the token"
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let error = job(&[], directory.path().to_str().unwrap()).unwrap_err();
    assert!(
        matches!(error, EnvError::Token(TokenError::NotAFile { .. })),
        "{error}"
    );
    let error = job(&[], "/nonexistent/token").unwrap_err();
    assert!(
        matches!(error, EnvError::Token(TokenError::Unreadable { .. })),
        "{error}"
    );
}

#[test]
fn a_descriptor_goes_before_the_file_and_keeps_its_offset() {
    use std::os::fd::AsRawFd as _;
    let file = token_file(HEX, 0o600);
    let fd = file.as_file().as_raw_fd().to_string();
    for _ in 0..2 {
        let env = job(&[("TIDEWATER_TOKEN_FD", &fd)], "/nonexistent/token");
        assert_eq!(env.unwrap().unwrap().token.to_hex(), HEX);
    }
    let error = job(&[("TIDEWATER_TOKEN_FD", "987654")], "").unwrap_err();
    assert!(error.to_string().contains("descriptor 987654"), "{error}");
}

#[test]
fn misspelt_variables_are_found_and_the_table_is_sorted() {
    let names = [
        "TIDEWATER_RANKS",
        "TIDEWATER_RANK",
        "PATH",
        "TIDEWATER_",
        "TIDEWATER_TEST_DATA",
        "XTIDEWATER_A",
    ];
    let unknown = unknown_variables(names.map(OsString::from));
    assert_eq!(unknown, ["TIDEWATER_", "TIDEWATER_RANKS"]);
    assert!(VARIABLES.is_sorted_by_key(|variable| variable.name));
}

fn launch_vars(vars: &[(&str, &str)]) -> Result<LaunchVars, EnvError> {
    let vars = vars.iter();
    LaunchVars::from_vars(vars.map(|&(name, value)| (name.into(), value.into())))
}

#[test]
fn launched_process_reads_its_settings() {
    let vars = launch_vars(&[
        ("TIDEWATER_APPLIERS", "4"),
        ("TIDEWATER_SERVERS", "2"),
        ("TIDEWATER_SERVERS_IN_RANKS", "1"),
        ("TIDEWATER_INTERFACE", "ib0"),
        ("TIDEWATER_TRANSPORT", "tcp"),
        ("TIDEWATER_RDMA_DEVICE", ""),
        ("TIDEWATER_RDMA_TIMEOUT", "10"),
    ]);
    let vars = vars.unwrap();
    assert_eq!((vars.appliers, vars.servers), (Some(4), Some(2)));
    assert!(vars.servers_in_ranks);
    assert_eq!(vars.interface.as_deref(), Some("ib0"));
    assert_eq!(vars.transport, Some(TransportChoice::Tcp));
    assert_eq!(vars.rdma_device, None, "an empty variable counts as unset");
    assert_eq!(vars.fabric.timeout_exponent(), 10);
    let unset = launch_vars(&[("TIDEWATER_SERVERS_IN_RANKS", "0"), ("HOME", "/")]);
    assert_eq!(unset.unwrap(), LaunchVars::default());
}

#[test]
fn fabric_settings_survive_the_environment() {
    let all = [
        ("TIDEWATER_RDMA_TIMEOUT", "20"),
        ("TIDEWATER_RDMA_RETRIES", "7"),
        ("TIDEWATER_RDMA_TRAFFIC_CLASS", "104"),
        ("TIDEWATER_RDMA_SERVICE_LEVEL", "3"),
        ("TIDEWATER_RDMA_PKEY", "0x8001"),
        ("TIDEWATER_RDMA_GID_INDEX", "5"),
        ("TIDEWATER_RDMA_STATIC_RATE", "2.5"),
        ("TIDEWATER_RDMA_FLOW_LABEL", "0xfffff"),
        ("TIDEWATER_RDMA_ECE", "off"),
    ];
    let fabric = launch_vars(&all).unwrap().fabric;
    // What a launcher passes on is what it was given.
    let passed_on = fabric.variables();
    let passed_on: Vec<_> = passed_on.iter().map(|(n, v)| (*n, v.as_str())).collect();
    assert_eq!(passed_on, all);
    // A flag comes before the variable, for each setting alone.
    let flag = launch_vars(&[("TIDEWATER_RDMA_RETRIES", "2")])
        .unwrap()
        .fabric;
    let merged = flag.or(fabric);
    assert_eq!((merged.retry_count(), merged.timeout_exponent()), (2, 20));
}

#[test]
fn impossible_setting_is_named() {
    for (name, value) in [
        ("TIDEWATER_APPLIERS", "0"),
        ("TIDEWATER_SERVERS", "0"),
        ("TIDEWATER_SERVERS_IN_RANKS", "2"),
        ("TIDEWATER_TRANSPORT", "fast"),
        ("TIDEWATER_RDMA_DEVICE", "../x"),
        ("TIDEWATER_RDMA_TIMEOUT", "7"),
        ("TIDEWATER_RDMA_RETRIES", "0"),
        ("TIDEWATER_RDMA_TRAFFIC_CLASS", "256"),
        ("TIDEWATER_RDMA_SERVICE_LEVEL", "16"),
        ("TIDEWATER_RDMA_PKEY", "ffff"),
        ("TIDEWATER_RDMA_GID_INDEX", "256"),
        ("TIDEWATER_RDMA_STATIC_RATE", "7"),
        ("TIDEWATER_RDMA_FLOW_LABEL", "0x100000"),
        ("TIDEWATER_RDMA_ECE", "yes"),
    ] {
        let error = launch_vars(&[(name, value)]).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(value), "{error}");
    }
}
