#!/usr/bin/env bash
# rustfmt, with the options of rustfmt.toml.
source "$(dirname "$0")/lib.sh"
cargo fmt --all --check
