# shellcheck shell=bash
# Test binaries of the workspace, built with other flags than the one build. Source it after ci/lib.sh.

# build_instrumented FOLDER FLAG...: builds programs and tests of the workspace in target/FOLDER with these flags of
# rustc, in the profile `quick`. Sets PROGRAMS to all executables, and TEST_BINARIES to the file that lists the tests.
build_instrumented() {
    local folder=target/$1 messages=target/$1.json
    shift
    mkdir -p "$folder"
    CARGO_TARGET_DIR=$folder RUSTC_WORKSPACE_WRAPPER=$REPO_ROOT/ci/lib/instrument.sh INSTRUMENT=$* CARGO_INCREMENTAL=0 \
        cargo build --locked --profile quick --workspace --all-targets --features "$FEATURES" \
        --message-format json-render-diagnostics >"$messages"
    # shellcheck disable=SC2034  # it is the caller's
    mapfile -t PROGRAMS < <(grep -o '"executable":"[^"]*"' "$messages" | cut -d'"' -f4 | sort -u)
    TEST_BINARIES=$REPO_ROOT/$folder/tests.tsv
    awk -f ci/lib/test_binaries.awk "$messages" | sort >"$TEST_BINARIES"
    rm -f "$messages"
}

# leave_out "CRATE TARGET"...: takes these test binaries from the list; * is any crate.
leave_out() {
    local row
    for row in "$@"; do
        awk -F '\t' -v row="$row" 'BEGIN { split(row, r, " ") } !((r[1] == "*" || $1 == r[1]) && $2 == r[2])' \
            "$TEST_BINARIES" >"$TEST_BINARIES.new"
        mv "$TEST_BINARIES.new" "$TEST_BINARIES"
    done
}
