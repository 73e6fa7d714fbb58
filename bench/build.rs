//! Passes the origin of the build to the benchmark: commit, compiler, profile.

use std::path::Path;
use std::process::Command;

fn main() {
    let commit = output("git", &["rev-parse", "--short=12", "HEAD"]);
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let rustc = output(&rustc, &["--version"]);
    let unknown = || "unknown".to_owned();
    println!(
        "cargo::rustc-env=TIDEWATER_COMMIT={}",
        commit.unwrap_or_else(unknown)
    );
    println!(
        "cargo::rustc-env=TIDEWATER_RUSTC={}",
        rustc.unwrap_or_else(unknown)
    );
    println!("cargo::rustc-env=TIDEWATER_PROFILE={}", profile());
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    println!(
        "cargo::rustc-env=TIDEWATER_RUSTFLAGS={}",
        flags.replace('\x1f', " ")
    );
    println!("cargo::rerun-if-changed=build.rs");
    // Without a repository there is no file to watch.
    if let Some(log) = output("git", &["rev-parse", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo::rerun-if-changed={log}");
    }
}

/// Name of the profile. Cargo passes only the built-in profile that it inherits from; the output
/// directory is named after the profile itself.
fn profile() -> String {
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    let name = Path::new(&out).ancestors().nth(3);
    let name = name.and_then(Path::file_name);
    name.map_or_else(
        || "unknown".into(),
        |name| name.to_string_lossy().into_owned(),
    )
}

/// First line of a program's output, if the program exists and succeeds.
fn output(program: &str, args: &[&str]) -> Option<String> {
    let out = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    let line = text.lines().next()?.trim().to_owned();
    (out.status.success() && !line.is_empty()).then_some(line)
}
