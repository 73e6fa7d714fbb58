#!/usr/bin/env bash
# What users build and no other stage does: the thin client without the server, as Rust programs and libtidewater have
# it, and the default build without the mutants.
source "$(dirname "$0")/lib.sh"
cargo check --locked --profile ci -p tidewater -p tidewater-capi --no-default-features --lib
cargo check --locked --profile ci --workspace
