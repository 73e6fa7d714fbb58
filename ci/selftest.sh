#!/usr/bin/env bash
# Checks the checks: plants violations in a copy of the project and requires that the check finds each of them by its
# name and file; and that it has nothing against what is allowed.
source "$(dirname "$0")/lib.sh"
passed=0 failed=0
REPORT_TO=${CI_REPORT:-} # the checks run here report nowhere
unset CI_REPORT
scratch_dir
ORIGINAL=$SCRATCH/original
COPY=$SCRATCH/copy
OUT=$SCRATCH/out

# fresh_copy: the project as it is in this folder, its own repository, without a build. After the first one, git
# restores what the last check has changed: a copy of some 2,500 files takes a second or two.
fresh_copy() {
    if [[ -d $COPY ]]; then
        git -C "$COPY" reset -q --hard
        git -C "$COPY" clean -qffdx
    else
        cp -a "$ORIGINAL" "$COPY"
    fi
    WANTED=()
}

outcome() {
    if [[ $1 == ok ]]; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        say "FAILED: $2"
        tail -n 15 "$OUT" | sed 's/^/    /'
    fi
    [[ $1 != ok ]] || say "ok: $2"
}

# relock FILE: a new edge needs a new lock file.
relock() {
    [[ $1 != *Cargo.toml ]] || (cd "$COPY" && cargo metadata --offline --format-version 1) >/dev/null 2>&1 || true
}

# run_check "SCRIPT [ARGUMENT]"
run_check() {
    local words
    read -ra words <<<"$1"
    "./${words[0]}" "${words[@]:1}"
}

# finds CHECK TEXT FILE <CONTENT: appends CONTENT to FILE; CHECK must fail and say TEXT.
finds() {
    local check=$1 text=$2 file=$COPY/$3
    fresh_copy
    mkdir -p "$(dirname "$file")"
    cat >>"$file"
    relock "$file"
    if (cd "$COPY" && run_check "$check") >"$OUT" 2>&1; then
        outcome no "$check did not find: $text"
    elif grep -qF -- "$text" "$OUT"; then
        outcome ok "$check finds: $text"
    else
        outcome no "$check failed, but did not say: $text"
    fi
}

# plant TEXT FILE <CONTENT: appends CONTENT to FILE; `finds_planted` requires that the check says TEXT of FILE.
plant() {
    mkdir -p "$(dirname "$COPY/$2")"
    cat >>"$COPY/$2"
    WANTED+=("$2"$'\t'"$1")
}

# plant_allowed WHAT FILE <CONTENT: the same; the check may say nothing of FILE.
plant_allowed() {
    local what=$1
    shift
    plant "" "$@"
    WANTED[-1]+="allowed $what"
}

# finds_planted CHECK: the check must fail, and say of each planted file what it has to.
finds_planted() {
    local file text
    if (cd "$COPY" && run_check "$1") >"$OUT" 2>&1; then outcome no "$1 passes"; fi
    for text in "${WANTED[@]}"; do
        file=${text%%$'\t'*} text=${text#*$'\t'}
        case $text in
        "allowed "*)
            if grep -qE "^($file:|[a-z]*awk: )" "$OUT"; then outcome no "$1 must allow ${text#allowed }"; else
                outcome ok "$1 allows ${text#allowed }"
            fi
            ;;
        *)
            if awk -v f="$file:" -v t="$text" 'index($0, f) == 1 && index($0, t) { n = 1 } END { exit !n }' "$OUT"; then
                outcome ok "$1 finds: $text"
            else outcome no "$1 did not find: $text"; fi
            ;;
        esac
    done
}

# all_sh WANTED_CODE TEXT WHAT: ci/all.sh of the copy, with a stage `setup` of this text and a cargo that does BUILD.
all_sh() {
    local code=0
    mkdir -p "$COPY/target/ci" "$SCRATCH/all"
    ln -sf "$XTASK" "$COPY/target/ci/xtask"
    printf '#!/usr/bin/env bash\n%s\n' "$BUILD" >"$SCRATCH/all/cargo"
    printf '#!/usr/bin/env bash\n%s\n' "$SETUP" >"$COPY/ci/setup.sh"
    chmod +x "$SCRATCH/all/cargo"
    cat >"$COPY/budget.toml" <<'TOML'
[run]
budget_s = 60
hard_s = 60
full_factor = 1
[stage.setup]
script = "ci/setup.sh"
does = "test"
budget_s = 5
timeout_s = 20
sets_up = true
tries = 2
TOML
    (cd "$COPY" && PATH=$SCRATCH/all:$PATH CI_BUDGET=budget.toml ./ci/all.sh) >"$OUT" 2>&1 || code=$?
    if [[ $code -eq $1 ]] && grep -qE -- "$2" "$OUT"; then outcome ok "all.sh: $3"; else
        outcome no "all.sh: $3 (exit code $code)"
    fi
}

# Each in a file of its own, all in one run: what the check says of one file does not depend on another.
test_homes() {
    fresh_copy
    plant "formats are pure and may not name std::io::Read" transport/protocol/src/layout/row.rs \
        <<<'use std::{fmt, io::Read};'
    plant_allowed "a test of a pure module that reads a file" transport/protocol/src/layout/hash.rs \
        <<<'mod tests { use std::{fs, env}; }'
    plant "names std::sync::atomic::AtomicU64" server/engine/src/store.rs \
        <<<'use std::{fmt, sync::{Arc, atomic::{AtomicU64, Ordering}}};'
    plant "names core::sync::atomic::fence" transport/runtime/src/mem.rs \
        <<<'fn f() { core::sync::atomic::fence(x) }'
    plant "names std::time::Instant::now" client/tidewater/src/pull.rs \
        <<<'fn f() { std::time::Instant::now(); }'
    plant "names SystemTime::now" tests/exactly_once.rs <<<'fn f() { SystemTime::now(); }'
    plant "names rdma_sys::ibv_qp" transport/verbs/src/pair.rs <<<'use rdma_sys::ibv_qp;'
    plant_allowed "comments and literals" transport/runtime/src/wait.rs <<'RUST'
//! Says std::sync::atomic::AtomicU64 and imports nothing.
use super::sync::AtomicU64;
const B: &str = r#"Instant::now() " "#; /* std::sync::atomic /* */ { */
fn f<'a>(c: &'a u8) -> char { '"' }
RUST
    finds_planted ci/tidy.sh
}

test_tidy() {
    fresh_copy
    plant "over 600 needs its reason" server/service/src/long.rs < <(yes '// x' | head -n 601)
    plant_allowed "a long file with a reason" server/service/src/reason.rs \
        < <(say '// long: a table' && yes '// x' | head -n 601)
    plant "not ASCII" server/service/src/a.rs <<<$'// caf\xc3\xa9'
    plant "unfinished" server/service/src/b.rs <<<'// TO''DO: later'
    plant "names a path of one machine" docs/a.md <<<'See /ho''me/me/tidewater.'
    plant "unsafe without a SAFETY comment" transport/runtime/src/mem.rs <<<'fn f() { unsafe { g() } }'
    plant "unsafe without a SAFETY comment" transport/runtime/src/far.rs \
        <<<$'// SAFETY: so, far away.\n//\n//\n//\n//\nfn f() { unsafe { g() } }'
    plant_allowed "an argued unsafe" transport/runtime/src/wait.rs <<<$'// SAFETY: so.\nunsafe { g() }'
    plant "link leads nowhere: nowhere.md" docs/b.md <<<'[there](nowhere.md)'
    plant "no heading for the link TESTING.md#nope" docs/c.md <<<'[there](TESTING.md#nope)'
    plant "no test nobody_wrote_this in tidewater-service" docs/TESTING.md \
        <<<$'\n| mutant | crate | target | test |\n|---|---|---|---|\n| `at-clock-off` | tidewater-service | lib | nobody_wrote_this |'
    finds_planted ci/tidy.sh
    # One finding is enough to fail.
    finds ci/tidy.sh "not ASCII" server/service/src/a.rs <<<$'// caf\xc3\xa9'
}

test_sources() {
    finds ci/sources.sh "dialect-words-per-1000 is over the recorded" docs/a.md < <(yes 'Tell nobody.' | head -n 9999)
    finds ci/sources.sh "short-docs-percent is over the recorded" server/service/src/a.rs < <(yes $'/// Short.\nfn f() {}' | head -n 9999)
    finds ci/sources.sh "new in a cycle: tidewater-protocol: ids -> table" transport/protocol/src/ids.rs \
        <<<'use crate::{limits, table::TableId};'
    finds ci/sources.sh "over 15,000 lines without tests" transport/control/src/a.rs < <(yes 'fn f() {}' | head -n 15001)
    finds ci/sources.sh "Z-01 is no known id" docs/SEED_FEATURES.md <<<'| Z-01 | name | not built | why | |'
    finds ci/sources.sh "Bare has no example" client/tidewater/src/a.rs <<<'pub struct Bare;'
    finds ci/sources.sh "picture of the crates that differs" transport/control/Cargo.toml \
        <<<$'[dependencies.tidewater-topology]\nworkspace = true'
}

# What ci/all.sh does itself; the tests of xtask have the rest.
test_all_sh() {
    fresh_copy
    BUILD=: SETUP='touch seen; printf "note\tfetched\n" >>"$CI_REPORT"' all_sh 0 '^setup +ok +.* fetched$' "a good setup"
    rm -f "$COPY/seen"
    BUILD=: SETUP='[[ -e seen ]] || { touch seen; echo error: bad luck; exit 1; }' all_sh 0 '^setup +ok, 2nd try ' "a second try of setup"
    if grep -q '^1:error: bad luck' "$OUT"; then outcome ok "all.sh: what its first try said"; else
        outcome no "all.sh: what its first try said"
    fi
    BUILD=: SETUP='exit 3' all_sh 1 '^FAILED: setup; log: ' "a setup that fails twice"
    BUILD='exit 101' SETUP='echo no network; exit 1' all_sh 1 '^no network$' "a setup without which nothing can be built"
    if grep -qx '0 passed, 1 failed' "$OUT"; then outcome ok "all.sh: counts it"; else outcome no "all.sh: counts it"; fi
}

# A fake cargo "builds" this test binary: it fails as told when its defect is planted.
test_mutants() {
    fresh_copy
    mkdir -p "$SCRATCH/bin"
    cat >"$SCRATCH/bin/cargo" <<'SH'
#!/usr/bin/env bash
echo '{"reason":"compiler-artifact","package_id":"path+file:///x#tidewater-service@0.1.0","manifest_path":"/tmp/Cargo.toml","target":{"kind":["lib"],"name":"s"},"profile":{"test":true},"executable":"'"$(dirname "$0")"'/fake"}'
SH
    cat >"$SCRATCH/bin/fake" <<'SH'
#!/usr/bin/env bash
echo "${TIDEWATER_MUTANT:-none}" >>"$0.runs"
[[ $2 == known ]] && echo "running 1 test" || { echo "running 0 tests"; exit 0; }
[[ -z ${TIDEWATER_MUTANT:-} || $TIDEWATER_MUTANT == at-clock-off ]] || kill -ABRT $$
[[ ${TIDEWATER_MUTANT:-} != "$CATCHES" ]] || { echo "test result: FAILED. 0 passed; 1 failed;"; exit 101; }
echo "test result: ok. 1 passed; 0 failed;"
SH
    chmod +x "$SCRATCH/bin"/*
    mutant_case at-clock-off at-clock-off known 'at-clock-off +caught' 0
    mutant_case at-clock-off nothing known 'at-clock-off +NOT NOTICED' 1
    mutant_case at-clock-off '' known 'fails even without it' 1
    mutant_case tick-before-apply '-' known 'dies .* instead of failing' 1
    mutant_case at-clock-off at-clock-off unknown 'no test of that name' 1
    mutants_of_one_test
}

# mutant_table ROW...: the table that the copy has, of "MUTANT CRATE TARGET TEST".
mutant_table() {
    printf '\n| mutant | crate | target | test |\n|---|---|---|---|\n' >"$COPY/docs/TESTING.md"
    printf '%s\n' "$@" | sed 's/ / | /g; s/.*/| & |/' >>"$COPY/docs/TESTING.md"
}

# mutants_sh CATCHES TEXT CODE: ci/mutants.sh of the copy, where the mutant CATCHES fails its test.
mutants_sh() {
    local code=0
    rm -f "$SCRATCH/bin/fake.runs"
    (cd "$COPY" && PATH=$SCRATCH/bin:$PATH CATCHES=$1 ./ci/mutants.sh) >"$OUT" 2>&1 || code=$?
    if [[ $code -eq $3 ]] && grep -qE "$2" "$OUT"; then outcome ok "mutants.sh says: $2"; else
        outcome no "mutants.sh must say: $2 (exit code $code)"
    fi
}

# mutant_case MUTANT CATCHES TEST TEXT CODE
mutant_case() {
    mutant_table "$1 tidewater-service lib $3"
    mutants_sh "$2" "$4" "$5"
}

# Mutants of one test: it runs once without them, and the rows are those of the table, in its order.
mutants_of_one_test() {
    mutant_table 'at-clock-off tidewater-service lib known' 'nagle-left-on tidewater-service lib unknown' \
        'tick-before-apply tidewater-service lib known'
    mutants_sh at-clock-off '^mutants: 1/3 caught$' 1
    if [[ $(sed -n 's/^\([a-z-]*\)  *\(caught\|no test\|dies\).*/\1/p' "$OUT" | xargs) == "at-clock-off nagle-left-on tick-before-apply" ]]; then
        outcome ok "mutants.sh: rows in the order of the table"
    else outcome no "mutants.sh: rows in the order of the table"; fi
    # The unknown test is run once as well, to find that it is unknown.
    if [[ $(sort "$SCRATCH/bin/fake.runs" | xargs) == "at-clock-off none none tick-before-apply" ]]; then
        outcome ok "mutants.sh: a test of two mutants runs once without them"
    else outcome no "mutants.sh: a test of two mutants runs once without them"; fi
    mutant_table 'block-without-fence tidewater-runtime loom known'
    mutants_sh '' '^mutants: 0/0 caught$' 1
}

# says CODE TEXT WHAT COMMAND...: the command, run in the copy, has this exit code and prints the text (grep -E).
says() {
    local code=0 wanted=$1 text=$2 what=$3
    shift 3
    (cd "$COPY" && "$@") >"$OUT" 2>&1 || code=$?
    if [[ $code -eq $wanted ]] && grep -qE -- "$text" "$OUT"; then outcome ok "$what"; else
        outcome no "$what: must say $text with exit code $wanted (exit code $code)"
    fi
}

# A fake cargo "builds" a simulator in which every tenth seed fails, unless SOUND is set.
test_seeds() {
    local kept=$COPY/target/failed-seeds.tsv
    fresh_copy
    mkdir -p "$SCRATCH/seeds"
    cat >"$SCRATCH/seeds/cargo" <<'SH'
#!/usr/bin/env bash
echo '{"reason":"compiler-artifact","package_id":"path+file:///x#tidewater-tests@0.1.0","manifest_path":"/tmp/Cargo.toml","target":{"kind":["test"],"name":"sim"},"profile":{"test":true},"executable":"'"$(dirname "$0")"'/sim"}'
SH
    cat >"$SCRATCH/seeds/sim" <<'SH'
#!/usr/bin/env bash
[[ -n ${SOUND:-} ]] || ((TIDEWATER_SEED % 10)) || { printf 'failures:\n    a::b\ntest result: FAILED.\n'; exit 101; }
SH
    chmod +x "$SCRATCH/seeds"/*
    says 0 '18 held, 2 did not, at [0-9a-f]+\+?: a::b [0-9]+, a::b [0-9]+ \(target' "fresh.sh: names the seeds that fail" \
        env PATH="$SCRATCH/seeds:$PATH" ci/fresh.sh
    if [[ $(grep -cE $'^[0-9a-f]+\\+?\ttidewater-tests sim\ta::b\t[0-9]+$' "$kept") == 2 ]]; then
        outcome ok "fresh.sh: keeps commit, target, test and seed"
    else outcome no "fresh.sh: keeps commit, target, test and seed"; fi
    says 1 'and 2 kept ones: ' "fresh.sh --hours: fails on a kept seed" env PATH="$SCRATCH/seeds:$PATH" ci/fresh.sh --hours 0.0006
    # How many are kept depends on how many seeds the second above tried.
    says 0 'no new seed and ([0-9]+) kept ones: \1 held, 0 did not$' "fresh.sh --hours: kept seeds that hold" \
        env PATH="$SCRATCH/seeds:$PATH" SOUND=1 ci/fresh.sh --hours 0.0001
}

# Parts that fail, and parts without their tools.
test_nightly() {
    fresh_copy
    printf '#!/usr/bin/env bash\nsource ci/lib.sh\nnothing_to_run "no tools; $*"\n' >"$COPY/ci/coverage.sh"
    printf '#!/usr/bin/env bash\nexit 3\n' >"$COPY/ci/asan.sh"
    says 1 '^coverage +nothing +[0-9]+  no tools' "nightly.sh: a part without tools" ci/nightly.sh --only coverage --only asan
    says 1 '^FAILED: asan; log: ' "nightly.sh: a part that fails" ci/nightly.sh --only asan
    says 0 '  no tools; a b$' "nightly.sh: arguments of a part" ci/nightly.sh --only coverage -- a b
    says 1 'for one part' "nightly.sh: arguments need a part" ci/nightly.sh -- a
}

mkdir -p "$ORIGINAL"
git_files . | xargs -0 cp --parents -t "$ORIGINAL"
git -C "$ORIGINAL" init -q
git -C "$ORIGINAL" -c user.name=ci -c user.email=ci@localhost add -A
git -C "$ORIGINAL" -c user.name=ci -c user.email=ci@localhost commit -qm copy
test_homes
test_tidy
cargo build --quiet --locked --profile ci --package xtask
export XTASK=$REPO_ROOT/target/ci/xtask
test_sources
test_all_sh
test_mutants
test_seeds
test_nightly
CI_REPORT=$REPORT_TO report selftest "$passed" "$failed" 0
((failed == 0))
