#!/usr/bin/env bash
# What `cargo xtask` holds of the sources: words, cycles between modules, sizes of crates, the picture
# of the crates, the table of features.
source "$(dirname "$0")/lib.sh"
failed=0 checks=0
for check in words modules lines 'crates --check' features; do
    read -ra arguments <<<"$check"
    xtask "${arguments[@]}" || failed=1
    checks=$((checks + 1))
done
note "$checks checks"
exit "$failed"
