#!/usr/bin/env bash
# What users build and no other stage does: the default build without the mutants, and the thin client without the
# server and without RDMA, as Rust programs and libtidewater may have it.
source "$(dirname "$0")/lib.sh"
# WebAssembly is an option, and its compiler has 100 crates.
cargo check --locked --profile ci --workspace --exclude tidewater-wasm
# tidewater-cli, which does not use the client, makes the crates of others have the features of the line above: without
# it 14 more of them would be checked again.
cargo check --locked --profile ci -p tidewater -p tidewater-capi -p tidewater-cli --no-default-features --lib
