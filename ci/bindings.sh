#!/usr/bin/env bash
# The client from other languages: libtidewater is installed and used as a user would, by pkg-config
# alone; the same simulation in Rust, C, C++ and Fortran gives the same numbers, with and
# without MPI; what a C program may get wrong is a status; the wheel for Python is built, installed and
# used. C is required; the others where there is a compiler, or a Python that can fetch maturin and numpy.
source "$(dirname "$0")/lib.sh"
scratch_dir
PREFIX=$SCRATCH/prefix
EXAMPLES=$REPO_ROOT/client/capi/examples
TIDEWATER=$REPO_ROOT/target/ci/tidewater
RUN=("$TIDEWATER" run --servers 2 --workers 2 --)
LIMIT=120 # seconds for one program
TOLERANCE=1e-6
SKIPPED=()
passed=0 failed=0
SERVICE=

ok() { passed=$((passed + 1)) && say "ok: $*"; }
not_ok() { failed=$((failed + 1)) && say "FAILED: $*"; }
skip() { SKIPPED+=("$*") && say "not run: $*"; }

# attempt WHAT COMMAND...: a test.
attempt() {
    local what=$1
    shift
    if timeout "$LIMIT" "$@" >"$SCRATCH/log" 2>&1; then ok "$what"; else
        not_ok "$what (exit code $?)"
        tail -n 20 "$SCRATCH/log" | sed 's/^/    /'
        return 1
    fi
}

# same_numbers A B: the same names in the same order, each number within the tolerance.
same_numbers() {
    paste -d ' ' "$1" "$2" | awk -v tolerance="$TOLERANCE" '
        function abs(x) { return x < 0 ? -x : x }
        NF != 4 || $1 != $3 || abs($2 - $4) > tolerance * abs($2) + 1e-12 { print "differs: " $0; bad = 1 }
        END { exit bad || NR < 10 }'
}

# simulates NAME COMMAND...: a job's program, whose numbers are those of Rust.
simulates() {
    local name=$1
    shift
    attempt "$name runs" bash -c '"${@:2}" >"$1"' - "$SCRATCH/$name.txt" "$@" || return 0
    if same_numbers "$SCRATCH/rust.txt" "$SCRATCH/$name.txt"; then ok "$name gives the numbers of Rust"; else
        not_ok "$name gives other numbers than Rust"
    fi
}

# compiler NAME PACKAGE: whether it is there, or can be had from Debian.
compiler() { command -v "$1" >/dev/null || apt_install "$2"; }

# service_start: a service that stays; sets SERVICE, COORDINATOR.
service_start() {
    local i line=
    rm -f "$SCRATCH/serve" && : >"$SCRATCH/serve"
    (umask 077 && printf '07%.0s' {1..32} >"$SCRATCH/token")
    "$TIDEWATER" serve --servers 2 --token-file "$SCRATCH/token" >"$SCRATCH/serve" 2>"$SCRATCH/serve.log" &
    SERVICE=$!
    for ((i = 0; i < 300; i++)); do
        read -r line <"$SCRATCH/serve" && break
        sleep 0.1
    done
    [[ -n $line ]] || die "the service did not start: $(tail -n 5 "$SCRATCH/serve.log")"
    COORDINATOR=${line##* }
}

service_stop() {
    [[ -n $SERVICE ]] || return 0
    kill -TERM "$SERVICE" 2>/dev/null || true
    wait "$SERVICE" 2>/dev/null || true
    SERVICE=
}

trap 'service_stop; rm -rf -- "$SCRATCH"' EXIT

build_all() {
    cargo build --locked --profile ci -p tidewater-client --example heat --example bandwidth --features "$FEATURES"
    cargo build --locked --profile ci -p tidewater-server --bin tidewater --features "$FEATURES"
    CARGO_ARGUMENTS="--features $FEATURES" scripts/install-capi.sh "$PREFIX" ci
    export PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig LD_LIBRARY_PATH=$PREFIX/lib
    read -ra CFLAGS < <(pkg-config --cflags tidewater)
    read -ra LIBS < <(pkg-config --libs tidewater)
    read -ra STATIC < <(pkg-config --static --libs tidewater)
}

# What scripts/install.sh installs beside: programs, pages, a modulefile.
test_install() {
    local module
    CARGO_ARGUMENTS="--features $FEATURES" attempt "scripts/install.sh installs" scripts/install.sh "$PREFIX" ci
    module=$(find "$PREFIX/share/modulefiles/tidewater" -type f)
    attempt "the modulefile names the prefix" grep -qF "set prefix \"$PREFIX\"" "$module"
    attempt "the modulefile is filled in" sh -c '! grep -q @ "$1"' sh "$module"
    attempt "the installed program runs" "$PREFIX/bin/tidewater" run -- true
    attempt "there are pages of all programs" ls "$PREFIX"/share/man/man1/{tidewater-run,tidewater-train-lr,tidewater-bench-latency}.1
}

test_library() {
    local others
    others=$(nm -D --defined-only "$PREFIX/lib/libtidewater.so" | awk '$3 !~ /^tw_/ { print $3 }')
    attempt "the library defines tw_* and nothing else${others:+: $others}" test -z "$others"
    for standard in c99 c11 c17; do
        attempt "the header is $standard" \
            cc -std="$standard" "${WARN[@]}" "${CFLAGS[@]}" -fsyntax-only -x c - < <(say '#include <tidewater.h>')
    done
    attempt "unload.c compiles" cc -std=gnu11 "${WARN[@]}" -o "$SCRATCH/unload" client/capi/tests/c/unload.c -ldl -lpthread
    attempt "the library can be unloaded under a thread that used it" "$SCRATCH/unload" "$PREFIX/lib/libtidewater.so"
    say "    $(tail -n 1 "$SCRATCH/log")"
}

test_c() {
    attempt "heat.c compiles" cc -std=c11 "${WARN[@]}" -O2 -o "$SCRATCH/heat_c" "$EXAMPLES/heat.c" "${CFLAGS[@]}" "${LIBS[@]}" -lm
    simulates c "${RUN[@]}" "$SCRATCH/heat_c"
    # -l:NAME takes the archive where both are.
    attempt "heat.c links statically" cc -std=c11 -O2 -o "$SCRATCH/heat_static" "$EXAMPLES/heat.c" "${CFLAGS[@]}" \
        "${STATIC[@]/-ltidewater/-l:libtidewater.a}" -lm
    simulates c-static env -u LD_LIBRARY_PATH "${RUN[@]}" "$SCRATCH/heat_static"
    attempt "hostile.c compiles" cc -std=gnu11 "${WARN[@]}" -g -o "$SCRATCH/hostile" client/capi/tests/c/hostile.c \
        "${CFLAGS[@]}" "${LIBS[@]}" -lpthread
}

test_hostile() {
    service_start
    attempt "what C gets wrong is a status" "$SCRATCH/hostile" "$COORDINATOR" "$SCRATCH/token"
    if compiler valgrind valgrind; then
        attempt "valgrind has nothing to say" valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
            --show-leak-kinds=definite --child-silent-after-fork=yes "$SCRATCH/hostile" "$COORDINATOR" "$SCRATCH/token"
    else
        skip "valgrind: not installed"
    fi
    attempt "a service that is killed is a status" "$SCRATCH/hostile" "$COORDINATOR" "$SCRATCH/token" "$SERVICE"
    service_stop
}

test_cpp() {
    compiler g++ g++ || { skip "C++: no g++"; return; }
    attempt "heat.cpp compiles" g++ -std=c++17 "${WARN[@]}" -O2 -o "$SCRATCH/heat_cpp" "$EXAMPLES/heat.cpp" "${CFLAGS[@]}" "${LIBS[@]}"
    simulates cpp "${RUN[@]}" "$SCRATCH/heat_cpp"
}

test_fortran() {
    compiler gfortran gfortran || { skip "Fortran: no gfortran"; return; }
    attempt "heat.f90 compiles" gfortran -std=f2018 -Wall -Wextra -Werror -O2 -J "$SCRATCH" -o "$SCRATCH/heat_f" \
        "$PREFIX/share/tidewater/tidewater.f90" "$EXAMPLES/heat.f90" "${LIBS[@]}"
    simulates fortran "${RUN[@]}" "$SCRATCH/heat_f"
}

# launchers: commands by which a job's processes start, by name; of what is here.
declare -A LAUNCHERS=()
find_launchers() {
    # As root in a container, and on loopback only.
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=self,vader
    export OMPI_MCA_oob_tcp_if_include=lo OMPI_MCA_rmaps_base_oversubscribe=1
    ! command -v mpirun.openmpi >/dev/null || LAUNCHERS[mpirun]="mpirun.openmpi"
    ! command -v mpiexec.hydra >/dev/null || LAUNCHERS[hydra]="mpiexec.hydra -iface lo"
}

# launched NAME COMMAND...: two servers and two workers of each launcher; no variable is set.
launched() {
    local name=$1 launcher start
    shift
    ((${#LAUNCHERS[@]})) || skip "$name by a launcher: neither Open MPI nor hydra"
    for launcher in "${!LAUNCHERS[@]}"; do
        read -ra start <<<"${LAUNCHERS[$launcher]}"
        "${LAUNCHED[@]}" "$name-$launcher" "${start[@]}" -n 2 "$TIDEWATER" server --hugepages off : -n 2 "$@" </dev/null
    done
}

# Two MPI processes, which the service takes for a job by their own ranks.
test_mpi() {
    local mpicc start told
    local -a service
    LAUNCHED=(simulates)
    launched c "$SCRATCH/heat_c"
    if ! mpicc=$(command -v mpicc.openmpi) || [[ -z ${LAUNCHERS[mpirun]:-} ]]; then
        skip "MPI: no Open MPI"
        return
    fi
    attempt "heat.c compiles with MPI" "$mpicc" -DHEAT_MPI -std=c11 "${WARN[@]}" -O2 -o "$SCRATCH/heat_mpi" \
        "$EXAMPLES/heat.c" "${CFLAGS[@]}" "${LIBS[@]}" -lm
    service_start
    service=(env TIDEWATER_COORDINATOR="$COORDINATOR" TIDEWATER_TOKEN_FILE="$SCRATCH/token" TIDEWATER_SERVERS=2)
    simulates c-mpi "${service[@]}" "${LAUNCHERS[mpirun]}" -n 2 "$SCRATCH/heat_mpi"
    # Open MPI's library under MPICH's launcher: each process believes to be the only one.
    if [[ -n ${LAUNCHERS[hydra]:-} ]]; then
        read -ra start <<<"${LAUNCHERS[hydra]}"
        told=0
        timeout "$LIMIT" "${service[@]}" "${start[@]}" -n 2 "$SCRATCH/heat_mpi" </dev/null >"$SCRATCH/log" 2>&1 || told=$?
        ((told != 0)) && grep -q "only worker, and MPICH hydra says that it is rank . of 2" "$SCRATCH/log" || told=0
        if ((told)); then ok "an MPI program under another MPI's launcher is told so"; else
            not_ok "an MPI program under another MPI's launcher is not told"
            tail -n 20 "$SCRATCH/log" | sed 's/^/    /'
        fi
    fi
    service_stop
}

# test_python: the wheel is built with what pip brings, and used in an environment that has it and
# numpy alone.
test_python() {
    local tools=target/tools/python fresh=$SCRATCH/python
    command -v python3 >/dev/null || { skip "Python: no python3"; return; }
    if [[ ! -x $tools/bin/maturin ]]; then
        rm -rf "$tools"
        if ! python3 -m venv "$tools" >"$SCRATCH/log" 2>&1 || ! "$tools/bin/pip" install --quiet 'maturin>=1.7,<2' >>"$SCRATCH/log" 2>&1; then
            skip "Python: no venv with maturin: $(tail -n 1 "$SCRATCH/log")"
            return
        fi
    fi
    attempt "the Python crate is formatted" cargo fmt --check --manifest-path client/python/Cargo.toml
    LIMIT=600 CARGO_TARGET_DIR=$REPO_ROOT/target attempt "the wheel is built" "$tools/bin/maturin" build --quiet --locked --profile ci \
        --manifest-path client/python/Cargo.toml --out "$SCRATCH/wheels" || return 0
    python3 -m venv "$fresh"
    if ! attempt "pip installs the wheel" "$fresh/bin/pip" install --quiet "$SCRATCH"/wheels/*.whl; then return 0; fi
    service_start
    attempt "ten lines against a service" "$fresh/bin/python" client/python/tests/ten_lines.py "$COORDINATOR" "$SCRATCH/token"
    attempt "the Python client" "$fresh/bin/python" client/python/tests/test_client.py "$COORDINATOR" "$SCRATCH/token"
    sed -n 's/^ok: /    /p' "$SCRATCH/log"
    attempt "bandwidth of Rust" target/ci/examples/bandwidth "$COORDINATOR" "$SCRATCH/token" && cat "$SCRATCH/log"
    attempt "bandwidth of Python" "$fresh/bin/python" client/python/tests/bandwidth.py "$COORDINATOR" "$SCRATCH/token" && cat "$SCRATCH/log"
    service_stop
    LAUNCHED=(attempt)
    launched python "$fresh/bin/python" client/python/tests/launched.py
}

WARN=(-Wall -Wextra -Werror -pedantic)
need_cc
command -v pkg-config >/dev/null || apt_install pkg-config || die "a user finds the library by pkg-config"
build_all
attempt "rust runs" bash -c '"${@:2}" >"$1"' - "$SCRATCH/rust.txt" "${RUN[@]}" target/ci/examples/heat || exit 1
cat "$SCRATCH/rust.txt"
sed 's/^\(weight.1 .*\)e-1$/\1001e-1/; s/^\(loss.last [0-9.]\{6\}\)./\15/' "$SCRATCH/rust.txt" >"$SCRATCH/other.txt"
if same_numbers "$SCRATCH/rust.txt" "$SCRATCH/other.txt" >"$SCRATCH/log"; then not_ok "the comparison is blind"; else
    ok "the comparison notices: $(head -n 1 "$SCRATCH/log")"
fi
test_install
test_library
test_c
test_hostile
test_cpp
test_fortran
find_launchers
test_mpi
test_python
report bindings "$passed" "$failed" 0
((${#SKIPPED[@]} == 0)) || note "not run: $(IFS=';' && say "${SKIPPED[*]}")"
((failed == 0))
