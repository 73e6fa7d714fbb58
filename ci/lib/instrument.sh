#!/usr/bin/env bash
# instrument.sh RUSTC ARGUMENT...: rustc with the flags of INSTRUMENT added, for RUSTC_WORKSPACE_WRAPPER: cargo calls it
# for the crates of the workspace alone, so that those they depend on are compiled once for all kinds of builds. Build
# scripts run on the host while cargo builds and stay as they are.
if [[ " $* " != *" --crate-name build_script_"* ]]; then
    read -ra flags <<<"$INSTRUMENT"
    # Flags that begin with -Z belong to no stable interface; the pinned compiler accepts them by this variable.
    [[ $INSTRUMENT != *-Z* ]] || export RUSTC_BOOTSTRAP=1
fi
exec "$@" "${flags[@]}"
