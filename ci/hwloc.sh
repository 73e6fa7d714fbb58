#!/usr/bin/env bash
# The feature `hwloc`: it builds, and hwloc sees the cores and nodes that our reader of /sys sees, on
# this machine and on machines that nobody has.
source "$(dirname "$0")/lib.sh"
pkg-config --exists hwloc libudev 2>/dev/null ||
    nothing_to_run "no libhwloc or libudev to link (Debian: pkg-config libhwloc-dev libudev-dev)"
scratch_dir
log=$SCRATCH/log.txt
failed=0
cargo clippy --locked --profile ci -p tidewater-topology --features hwloc --all-targets -- -D warnings
cargo test --locked --profile ci -p tidewater-topology --features hwloc --test topo 2>&1 |
    tee "$log" || failed=1
read -r p f i < <(summarize "$log")
report tidewater-topology "$p" "$f" "$i"
exit "$failed"
