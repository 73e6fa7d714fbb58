//! `tidewater rdma-check` where there is no RDMA: both ends give the reason and fail.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A device that no host has, so that the test is the same with and without RDMA.
const DEVICE: &str = "no_such_device0";

fn tidewater() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidewater"));
    command.arg("rdma-check").stdin(Stdio::null());
    command
}

/// A listener, ended with the test, and the address that it waits at.
struct Listener(Child, String);

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn listen(out: &Path) -> Listener {
    let mut command = tidewater();
    command.args(["--listen", "127.0.0.1:0", "--rdma-device", DEVICE]);
    command.args(["--wait", "60s", "--out"]).arg(out);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let stderr = child.stderr.take().unwrap();
    BufReader::new(stderr).read_line(&mut line).unwrap();
    let address = line
        .split("waiting at ")
        .nth(1)
        .and_then(|rest| rest.split(';').next());
    let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
    Listener(child, address)
}

/// Exit code of a process that must end by itself.
fn ended(child: &mut Child) -> i32 {
    for _ in 0..3000 {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the listener does not end");
}

#[test]
fn rdma_check_without_rdma_names_the_reason() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut listener = listen(there.path());
    let mut command = tidewater();
    command.args([&listener.1, "--short", "--rdma-device", DEVICE, "--out"]);
    let output = command.arg(here.path()).output().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{page}");
    assert_eq!(ended(&mut listener.0), 1);
    for words in [
        "# RDMA check: FAIL",
        "device of the listener",
        "device of the caller",
        "use their addresses",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    for folder in [here.path(), there.path()] {
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(read("rdma-check.md"), page, "both ends have one page");
        let json: serde_json::Value = serde_json::from_str(&read("rdma-check.json")).unwrap();
        assert_eq!(json["format"], 1);
        let finding = &json["findings"][0];
        assert_eq!(finding["verdict"], "fail");
        assert!(!json["caller"]["device_error"].as_str().unwrap().is_empty());
    }
}

#[test]
fn rdma_check_without_a_listener_says_what_to_start() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let output = tidewater().arg(&address).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("rdma-check --listen"), "{said}");
}
