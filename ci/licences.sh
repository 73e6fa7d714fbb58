#!/usr/bin/env bash
# cargo-deny with deny.toml: every crate of the resolved graph (all features, all platforms,
# build and tests too) has a licence we accept and comes from the registry; Cargo.lock is
# committed and up to date.
source "$(dirname "$0")/lib.sh"
DENY_VERSION=0.20.2
DENY=target/tools/bin/cargo-deny

git ls-files --error-unmatch Cargo.lock >/dev/null || die "Cargo.lock is not committed"
cargo metadata --locked --format-version 1 --no-deps >/dev/null || die "Cargo.lock is not up to date"
if [[ $("$DENY" --version 2>/dev/null) != "cargo-deny $DENY_VERSION" ]]; then
    say "installing cargo-deny $DENY_VERSION into target/tools (once; four minutes on one core)"
    cargo install cargo-deny --quiet --locked --version "$DENY_VERSION" --root target/tools \
        --target-dir target/tools/build
    rm -rf target/tools/build
fi
"$DENY" --locked --color never check licenses bans sources
note "$(grep -c '^name = ' Cargo.lock) crates"
