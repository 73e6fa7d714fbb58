#!/usr/bin/env bash
# loom: every interleaving of the tests named loom_*, up to LOOM_MAX_PREEMPTIONS preemptions.
# The only stage with RUSTFLAGS, hence with a target folder of its own.
source "$(dirname "$0")/lib.sh"
if ! git_files 'transport/src/*.rs' | xargs -0 grep -Eqs 'fn loom_[a-z0-9_]+'; then
    nothing_to_run "no test named loom_*"
fi
export RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target-loom
export LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-3}
log=$(mktemp)
failed=0
cargo test --locked --profile ci -p tidewater-transport --lib loom_ 2>&1 | tee "$log" || failed=1
read -r p f i < <(summarize "$log")
rm -f "$log"
report tidewater-transport "$p" "$f" "$i"
exit "$failed"
