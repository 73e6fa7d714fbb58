//! The checked-in header is what cbindgen writes from the sources. The shared structs keep their
//! layout: a field may be added at the end, never moved.

use std::collections::BTreeSet;
use std::mem::{offset_of, size_of};
use std::path::Path;

use tidewater_capi::types::{
    tw_buffer_options, tw_counters, tw_function_options, tw_group_range, tw_pull_options,
    tw_pulled, tw_push_options, tw_schedule, tw_session_info, tw_session_options, tw_table_info,
    tw_table_options, tw_task_info, tw_task_options,
};

const HEADER: &str = "include/tidewater.h";

#[test]
fn the_header_is_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    builder = builder.with_src(folder.join("src/types.rs"));
    for module in [
        "library",
        "session",
        "table",
        "data",
        "callback",
        "function",
        "buffer",
        "keys",
        "schedule",
        "vector",
        "clock",
        "collective",
        "walltime",
        "call",
        "tasks",
    ] {
        builder = builder.with_src(folder.join(format!("src/abi/{module}.rs")));
    }
    let mut written = Vec::new();
    builder.generate().unwrap().write(&mut written);
    let written = String::from_utf8(written).unwrap();
    let file = folder.join(HEADER);
    if std::env::var_os("TIDEWATER_TEST_BLESS").is_some() {
        std::fs::write(&file, &written).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = kept.lines().zip(written.lines()).position(|(a, b)| a != b);
    assert!(
        kept == written,
        "{HEADER} is not what src says (first at line {:?}); to write it again:\n\
         TIDEWATER_TEST_BLESS=1 cargo test --profile ci -p tidewater-capi --test header",
        differs.map(|line| line + 1)
    );
}

/// Sizes of the first release, which programs compiled with it pass.
#[test]
fn structs_only_grow() {
    assert!(size_of::<tw_session_options>() >= 96);
    assert!(size_of::<tw_session_info>() >= 32);
    assert!(size_of::<tw_table_options>() >= 128);
    assert!(size_of::<tw_table_info>() >= 40);
    assert!(size_of::<tw_pull_options>() >= 24);
    assert!(size_of::<tw_pulled>() >= 40);
    assert!(size_of::<tw_push_options>() >= 32);
    assert!(size_of::<tw_function_options>() >= 64);
    assert!(size_of::<tw_buffer_options>() >= 40);
    assert!(size_of::<tw_schedule>() >= 64);
    assert!(size_of::<tw_counters>() >= 176);
    assert_eq!(offset_of!(tw_session_options, has_rank), 40);
    assert_eq!(offset_of!(tw_session_options, join_timeout_s), 88);
    assert_eq!(offset_of!(tw_session_options, memory_budget), 104);
    assert_eq!(offset_of!(tw_session_info, thread_level), 24);
    assert_eq!(offset_of!(tw_table_options, hyper), 48);
    assert_eq!(offset_of!(tw_table_options, allow_not_finite), 120);
    assert_eq!(offset_of!(tw_table_options, initial_accumulator), 152);
    assert_eq!(offset_of!(tw_table_info, domain), 36);
    assert_eq!(offset_of!(tw_table_options, by_staleness), 160);
    assert_eq!(offset_of!(tw_table_options, redo), 168);
    assert_eq!(offset_of!(tw_table_options, versions), 164);
    assert_eq!(offset_of!(tw_table_options, partition_servers), 184);
    assert_eq!(offset_of!(tw_table_options, partition_starts), 200);
    assert_eq!(size_of::<tw_group_range>(), 40);
    assert_eq!(offset_of!(tw_pull_options, timeout_s), 16);
    assert_eq!(offset_of!(tw_pull_options, pulled), 24);
    assert_eq!(offset_of!(tw_pulled, has_version), 32);
    assert_eq!(offset_of!(tw_push_options, block), 24);
    assert_eq!(offset_of!(tw_function_options, count), 56);
    assert_eq!(offset_of!(tw_buffer_options, threshold), 32);
    assert_eq!(offset_of!(tw_schedule, iterations), 56);
    assert_eq!(offset_of!(tw_counters, ticks), 168);
    assert_eq!(offset_of!(tw_task_options, reserved), 84);
    assert_eq!(offset_of!(tw_task_info, failures), 36);
}

/// Fortran has each call of C, or says at its head that it does not.
#[test]
fn fortran_has_the_calls_of_c_or_names_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
    let (header, module) = (read(HEADER), read("fortran/tidewater.f90"));
    let (head, body) = module.split_once("\nmodule tidewater\n").unwrap();
    let words = |text: &str| -> BTreeSet<String> {
        let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
        text.split(word).map(str::to_owned).collect()
    };
    let calls: BTreeSet<String> = header
        .lines()
        .filter(|line| !line.trim_start().starts_with(['*', '/']))
        .filter_map(|line| line.split_once('('))
        .filter_map(|(before, _)| before.rsplit(' ').next())
        .map(|name| name.trim_start_matches('*').to_owned())
        .filter(|name| name.starts_with("tw_"))
        .collect();
    assert!(calls.len() > 80, "{} calls in {HEADER}", calls.len());
    let missing = head.split_once("Calls of C that are not here:").unwrap().1;
    let missing = words(missing.split_once("!\n").unwrap().0);
    let missing: BTreeSet<_> = missing
        .into_iter()
        .filter(|name| name.starts_with("tw_"))
        .collect();
    let bodies = words(body);
    let absent: BTreeSet<_> = calls
        .iter()
        .filter(|name| !bodies.contains(*name))
        .cloned()
        .collect();
    assert_eq!(absent, missing);
}
