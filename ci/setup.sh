#!/usr/bin/env bash
# Installs what a machine with only rustup and git lacks: a C compiler to link with, the pinned
# toolchain, the sources of the locked crates. After this stage the network is not needed.
source "$(dirname "$0")/lib.sh"
need_cc
need_rust
cargo fetch --locked
note "$(rustc --version | cut -d' ' -f1,2), $(nproc) cores"
