#!/usr/bin/env bash
# clippy over every target, with the lints of Cargo.toml; a warning fails.
source "$(dirname "$0")/lib.sh"
cargo clippy --locked --profile ci --workspace --all-targets --features "$FEATURES" -- -D warnings
