#!/usr/bin/env bash
# What a machine with only rustup and git lacks: with CI_INSTALL=1, on Debian as root, installs the packages of
# ci/packages.tsv; without it fails with the list of those that are required. Then the pinned toolchain and the
# sources of the locked crates. After this stage only the optional parts of others need the network.
source "$(dirname "$0")/lib.sh"
source ci/lib/packages.sh

need_packages ""
need_rust
cargo fetch --locked
note "$(rustc --version | cut -d' ' -f1,2), $(nproc) cores"
