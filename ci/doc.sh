#!/usr/bin/env bash
# rustdoc: every link of the API documentation resolves.
source "$(dirname "$0")/lib.sh"
export RUSTDOCFLAGS="-D warnings"
cargo doc --locked --profile ci --workspace --no-deps --lib --features "$FEATURES"
