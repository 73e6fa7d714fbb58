#!/usr/bin/env bash
# cargo-deny with deny.toml: every crate of the resolved graph (all features, all platforms,
# build and tests too) has a licence we accept and comes from the registry; Cargo.lock is
# committed and up to date. So it is for client/python, which has a lock file of its own.
source "$(dirname "$0")/lib.sh"
DENY_VERSION=0.20.2
DENY=target/tools/bin/cargo-deny

FOLDERS=(. client/python)

for folder in "${FOLDERS[@]}"; do
    git ls-files --error-unmatch "$folder/Cargo.lock" >/dev/null || die "$folder/Cargo.lock is not committed"
    cargo metadata --locked --format-version 1 --manifest-path "$folder/Cargo.toml" >/dev/null ||
        die "$folder/Cargo.lock is not up to date"
done
if [[ $("$DENY" --version 2>/dev/null) != "cargo-deny $DENY_VERSION" ]]; then
    say "installing cargo-deny $DENY_VERSION into target/tools (once; four minutes on one core)"
    cargo install cargo-deny --quiet --locked --version "$DENY_VERSION" --root target/tools \
        --target-dir target/tools/build
    rm -rf target/tools/build
fi
for folder in "${FOLDERS[@]}"; do
    "$DENY" --locked --color never --manifest-path "$folder/Cargo.toml" --config deny.toml check licenses bans sources
done
note "$(cat "${FOLDERS[@]/%//Cargo.lock}" | sed -n 's/^name = //p' | sort -u | wc -l) crates"
