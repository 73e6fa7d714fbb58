#!/usr/bin/env bash
# The client from other languages: libtidewater is installed and used as a user would, by pkg-config
# alone; the same simulation in Rust, C, C++, Fortran and Python gives the same numbers, with and
# without MPI; what a C program may get wrong is a status; the wheel for Python is built, installed and
# used. C is required; the others where there is a compiler, Open MPI, or a Python that can fetch
# maturin, numpy and mpi4py.
source "$(dirname "$0")/lib.sh"
source ci/lib/openmpi.sh
source ci/lib/packages.sh
scratch_dir
PREFIX=$SCRATCH/prefix
EXAMPLES=$REPO_ROOT/client/capi/examples
PYTHON_EXAMPLES=$REPO_ROOT/client/python/examples
TIDEWATER=$REPO_ROOT/target/ci/tidewater
RUN=("$TIDEWATER" run --servers 2 --workers 2 --)
# A service with a function by name.
FUNCTIONS=("$REPO_ROOT/target/ci/examples/functions" "$SCRATCH/token")
LIMIT=120 # seconds for one program
TOLERANCE=1e-6
# What the install scripts add to their build. They install from the one build: a crate that is built by itself has
# dependencies with fewer features, and so has all that depends on them, which is a build of its own. With --full they
# build as a user's command does, a library without the server in it; ci/nofeature.sh checks that it compiles.
CARGO_ARGUMENTS="--workspace --all-targets --features $FEATURES"
[[ ${TIDEWATER_TEST_FULL:-} != 1 ]] || CARGO_ARGUMENTS="--features $FEATURES"
export CARGO_ARGUMENTS
SKIPPED=()
passed=0 failed=0
SERVICE=
WHEEL= # what builds it

ok() { passed=$((passed + 1)) && say "ok: $*"; }
not_ok() { failed=$((failed + 1)) && say "FAILED: $*"; }
skip() { SKIPPED+=("$*") && say "not run: $*"; }

# attempt WHAT COMMAND...: a test.
attempt() {
    local what=$1
    shift
    if timeout "$LIMIT" "$@" >"$SCRATCH/log" 2>&1; then ok "$what"; else
        not_ok "$what (exit code $?)"
        tail -n 20 "$SCRATCH/log" | sed 's/^/FAILED:     /' # ci/all.sh repeats these lines at its end
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

# adds_in_order NAME COMMAND...: a job's program, which prints the bits of four workers of one thread.
adds_in_order() {
    local name=$1
    shift
    attempt "$name runs with threads" bash -c '"${@:2}" >"$1"' - "$SCRATCH/$name.threads" "$@" || return 0
    # Fortran writes digits above 9 in capitals.
    if cmp -s "$SCRATCH/threads.txt" <(tr A-F a-f <"$SCRATCH/$name.threads"); then ok "threads of $name add in order"; else
        not_ok "threads of $name give other bits than workers"
        diff "$SCRATCH/threads.txt" "$SCRATCH/$name.threads" | sed 's/^/    /'
    fi
}

# service_start [COMMAND...]: a service that stays; sets SERVICE, COORDINATOR.
service_start() {
    local i line=
    (($# > 0)) || set -- "$TIDEWATER" serve --servers 2 --token-file "$SCRATCH/token"
    rm -f "$SCRATCH/serve" && : >"$SCRATCH/serve"
    (umask 077 && printf '07%.0s' {1..32} >"$SCRATCH/token")
    "$@" >"$SCRATCH/serve" 2>"$SCRATCH/serve.log" &
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

trap 'service_stop; end_jobs; rm -rf -- "$SCRATCH"' EXIT

build_all() {
    build_tests
    scripts/install-capi.sh "$PREFIX" ci
    export PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig LD_LIBRARY_PATH=$PREFIX/lib
    read -ra CFLAGS < <(pkg-config --cflags tidewater)
    read -ra LIBS < <(pkg-config --libs tidewater)
    read -ra STATIC < <(pkg-config --static --libs tidewater)
}

# What scripts/install.sh installs beside: programs, pages, a modulefile.
test_install() {
    local module
    attempt "scripts/install.sh installs" scripts/install.sh "$PREFIX" ci
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
    attempt "threads.c compiles" cc -std=c11 "${WARN[@]}" -g -o "$SCRATCH/threads_c" client/capi/tests/c/threads.c \
        "${CFLAGS[@]}" "${LIBS[@]}" -lpthread
    adds_in_order c "${RUN[@]}" "$SCRATCH/threads_c" 2
    attempt "hostile.c compiles" cc -std=gnu11 "${WARN[@]}" -g -o "$SCRATCH/hostile" client/capi/tests/c/hostile.c \
        "${CFLAGS[@]}" "${LIBS[@]}" -lpthread
}

test_hostile() {
    attempt "functions.c compiles" cc -std=c11 "${WARN[@]}" -g -o "$SCRATCH/functions_c" \
        client/capi/tests/c/functions.c "${CFLAGS[@]}" "${LIBS[@]}"
    service_start "${FUNCTIONS[@]}"
    attempt "C calls functions at the data" "$SCRATCH/functions_c" "$COORDINATOR" "$SCRATCH/token"
    service_stop
    service_start
    attempt "what C gets wrong is a status" "$SCRATCH/hostile" "$COORDINATOR" "$SCRATCH/token"
    if have valgrind valgrind; then
        attempt "valgrind has nothing to say" valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
            --show-leak-kinds=definite --child-silent-after-fork=yes "$SCRATCH/hostile" "$COORDINATOR" "$SCRATCH/token"
    else
        skip "valgrind: not installed"
    fi
    attempt "a service that is killed is a status" "$SCRATCH/hostile" "$COORDINATOR" "$SCRATCH/token" "$SERVICE"
    service_stop
}

# A job that is told to end: at one step of all workers (the program checks it), with its model saved, and
# with 128 + the signal.
test_walltime() {
    local signal number job rc i
    attempt "walltime.c compiles" cc -std=gnu11 "${WARN[@]}" -o "$SCRATCH/walltime" client/capi/tests/c/walltime.c "${CFLAGS[@]}" "${LIBS[@]}"
    for signal in USR1 TERM; do
        number=$(kill -l "$signal") rc=0
        rm -rf "$SCRATCH/model" && : >"$SCRATCH/log"
        "${RUN[@]:0:2}" --timeout "${LIMIT}s" "${RUN[@]:2}" "$SCRATCH/walltime" "$SCRATCH/model" >"$SCRATCH/log" 2>&1 &
        job=$!
        for ((i = 0; i < 300; i++)); do
            ! grep -q stepping "$SCRATCH/log" || break
            sleep 0.1
        done
        kill -s "$signal" "$job"
        wait "$job" || rc=$?
        if ((rc == 128 + number)) && [[ -n $(ls -A "$SCRATCH/model") ]]; then
            ok "SIG$signal ends C workers at one step, saved, with $rc"
        else
            not_ok "SIG$signal ends C workers with $rc"
            sed 's/^/    /' "$SCRATCH/log"
        fi
    done
}

test_cpp() {
    have g++ g++ || { skip "C++: no g++"; return; }
    attempt "heat.cpp compiles" g++ -std=c++17 "${WARN[@]}" -O2 -o "$SCRATCH/heat_cpp" "$EXAMPLES/heat.cpp" "${CFLAGS[@]}" "${LIBS[@]}"
    simulates cpp "${RUN[@]}" "$SCRATCH/heat_cpp"
    attempt "threads.cpp compiles" g++ -std=c++17 "${WARN[@]}" -g -o "$SCRATCH/threads_cpp" \
        client/capi/tests/c/threads.cpp "${CFLAGS[@]}" "${LIBS[@]}" -lpthread
    adds_in_order cpp "${RUN[@]}" "$SCRATCH/threads_cpp" 2
    attempt "lifetimes.cpp compiles" g++ -std=c++17 "${WARN[@]}" -g -o "$SCRATCH/lifetimes" \
        client/capi/tests/c/lifetimes.cpp "${CFLAGS[@]}" "${LIBS[@]}" || return 0
    attempt "functions.cpp compiles" g++ -std=c++17 "${WARN[@]}" -g -o "$SCRATCH/functions_cpp" \
        client/capi/tests/c/functions.cpp "${CFLAGS[@]}" "${LIBS[@]}" || return 0
    attempt "tasks.cpp compiles" g++ -std=c++17 "${WARN[@]}" -g -o "$SCRATCH/tasks_cpp" \
        client/capi/tests/c/tasks.cpp "${CFLAGS[@]}" "${LIBS[@]}" || return 0
    local under=()
    ! command -v valgrind >/dev/null || under=(valgrind --quiet --error-exitcode=9)
    service_start
    attempt "tickets and tables outlive their C++ session" "${under[@]}" "$SCRATCH/lifetimes" "$COORDINATOR" "$SCRATCH/token"
    attempt "each task of C++ counts once" "$SCRATCH/tasks_cpp" "$COORDINATOR" "$SCRATCH/token"
    service_stop
    service_start "${FUNCTIONS[@]}"
    attempt "C++ calls functions at the data" "${under[@]}" "$SCRATCH/functions_cpp" "$COORDINATOR" "$SCRATCH/token"
    service_stop
}

test_fortran() {
    have gfortran gfortran || { skip "Fortran: no gfortran"; return; }
    attempt "heat.F90 compiles" gfortran "${FORTRAN[@]}" -O2 -o "$SCRATCH/heat_f" \
        "$PREFIX/share/tidewater/tidewater.f90" "$EXAMPLES/heat.F90" "${LIBS[@]}"
    simulates fortran "${RUN[@]}" "$SCRATCH/heat_f"
    attempt "threads.F90 compiles" gfortran "${FORTRAN[@]}" -o "$SCRATCH/threads_f" \
        "$PREFIX/share/tidewater/tidewater.f90" client/capi/tests/c/threads.F90 "${LIBS[@]}"
    adds_in_order fortran "${RUN[@]}" "$SCRATCH/threads_f" 2
    attempt "functions.F90 compiles" gfortran "${FORTRAN[@]}" -o "$SCRATCH/functions_f" \
        "$PREFIX/share/tidewater/tidewater.f90" client/capi/tests/c/functions.F90 "${LIBS[@]}" || return 0
    service_start "${FUNCTIONS[@]}"
    attempt "Fortran calls functions at the data" "$SCRATCH/functions_f" "$COORDINATOR" "$SCRATCH/token"
    service_stop
}

# The commands of launchers that are here, or can be had from Debian, by name.
declare -A LAUNCHERS=()
find_launchers() {
    if have mpirun.openmpi openmpi-bin; then LAUNCHERS[mpirun]="mpirun.openmpi"; else skip "mpirun: no Open MPI"; fi
    if have mpiexec.hydra mpich; then LAUNCHERS[hydra]="mpiexec.hydra -iface lo"; else skip "hydra: no MPICH"; fi
}

# launched CHECK NAME COMMAND...: two servers and two workers under each launcher; no variable is set.
launched() {
    local check=$1 name=$2 launcher start
    shift 2
    for launcher in "${!LAUNCHERS[@]}"; do
        read -ra start <<<"${LAUNCHERS[$launcher]}"
        # The folder in which processes meet is made where they start.
        "$check" "$name-$launcher" env -C "$SCRATCH" "${start[@]}" -n 2 "$TIDEWATER" server --hugepages off : -n 2 "$@"
    done
}

# by_mpi CHECK NAME LAUNCHER COMMAND...: two processes of a program that uses MPI, which a service takes
# for a job by the ranks that MPI gives them.
by_mpi() {
    local check=$1 name=$2 start
    read -ra start <<<"${LAUNCHERS[$3]}"
    shift 3
    service_start
    "$check" "$name" env TIDEWATER_COORDINATOR="$COORDINATOR" TIDEWATER_TOKEN_FILE="$SCRATCH/token" TIDEWATER_SERVERS=2 \
        "${start[@]}" -n 2 "$@"
    service_stop
}

test_mpi() {
    local mpi=(-DHEAT_MPI -O2)
    launched simulates rust "$REPO_ROOT/target/ci/examples/heat"
    launched simulates c "$SCRATCH/heat_c"
    launched adds_in_order rust "$REPO_ROOT/target/ci/examples/threads" 2
    launched adds_in_order c "$SCRATCH/threads_c" 2
    if [[ -z ${LAUNCHERS[mpirun]:-} ]] || ! { has_mpi_h || apt_install libopenmpi-dev; }; then
        skip "programs with MPI: no mpi.h of Open MPI"
        return
    fi
    if attempt "heat.c compiles with MPI" mpicc.openmpi "${mpi[@]}" -std=c11 "${WARN[@]}" -o "$SCRATCH/mpi_c" \
        "$EXAMPLES/heat.c" "${CFLAGS[@]}" "${LIBS[@]}" -lm; then
        by_mpi simulates c-mpi mpirun "$SCRATCH/mpi_c"
        # Open MPI's library under MPICH's launcher: each process believes to be the only one. Each has a folder of its
        # own: the session folders of two such processes that start at once collide (5 of 80 starts failed in MPI_Init).
        # shellcheck disable=SC2016
        [[ -z ${LAUNCHERS[hydra]:-} ]] || by_mpi attempt "an MPI program under another MPI's launcher is told so" hydra \
            bash -c 'TMPDIR=$(mktemp -d -p "$0") exec "$@"' "$SCRATCH" \
            "$REPO_ROOT/ci/lib/refused.sh" "only worker, and MPICH hydra says that it is rank . of 2" "$SCRATCH/mpi_c"
    fi
    if command -v g++ >/dev/null &&
        attempt "heat.cpp compiles with MPI" mpicxx.openmpi "${mpi[@]}" -std=c++17 "${WARN[@]}" -o "$SCRATCH/mpi_cpp" \
            "$EXAMPLES/heat.cpp" "${CFLAGS[@]}" "${LIBS[@]}"; then by_mpi simulates cpp-mpi mpirun "$SCRATCH/mpi_cpp"; fi
    if command -v gfortran >/dev/null &&
        attempt "heat.F90 compiles with MPI" mpifort.openmpi "${mpi[@]}" "${FORTRAN[@]}" -o "$SCRATCH/mpi_f" \
            "$PREFIX/share/tidewater/tidewater.f90" "$EXAMPLES/heat.F90" "${LIBS[@]}"; then
        by_mpi simulates fortran-mpi mpirun "$SCRATCH/mpi_f"
    fi
}

# begins NAME COMPILER LAUNCHER...: an MPI program that brings its servers; no variable but the network, no file.
begins() {
    local name=$1 compiler=$2
    shift 2
    attempt "begin.F90 compiles with $compiler" "$compiler" "${FORTRAN[@]}" -Wno-unused-dummy-argument -o "$SCRATCH/begin-$name" \
        "$PREFIX/share/tidewater/tidewater.f90" "$EXAMPLES/begin.F90" "${LIBS[@]}" || return 0
    attempt "$name: an MPI program brings its servers" env TIDEWATER_INTERFACE=lo "$@" -n 3 "$SCRATCH/begin-$name"
    mv "$SCRATCH/log" "$SCRATCH/begin-$name.log" # an attempt writes its own
    attempt "$name: its ranks add up" grep -qx 'sum 30' "$SCRATCH/begin-$name.log"
}

test_begin() {
    local start
    command -v gfortran >/dev/null || { skip "MPI programs with servers: no gfortran"; return; }
    if [[ -n ${LAUNCHERS[mpirun]:-} ]] && command -v mpifort.openmpi >/dev/null; then
        read -ra start <<<"${LAUNCHERS[mpirun]}"
        begins mpirun mpifort.openmpi "${start[@]}"
    else skip "begin.F90 under mpirun: no mpifort of Open MPI"; fi
    if [[ -n ${LAUNCHERS[hydra]:-} ]] && { command -v mpifort.mpich >/dev/null && echo 'use mpi_f08; end' |
        mpifort.mpich -fsyntax-only -x f95 - 2>/dev/null || apt_install libmpich-dev; }; then
        read -ra start <<<"${LAUNCHERS[hydra]}"
        begins hydra mpifort.mpich "${start[@]}"
    else skip "begin.F90 under hydra: no mpi_f08 of MPICH"; fi
}

# test_mpi4py ENVIRONMENT: a Python program that uses MPI itself, with what pip brings.
test_mpi4py() {
    local start
    if [[ -z ${LAUNCHERS[mpirun]:-} ]]; then
        skip "Python with MPI: no Open MPI"
    elif ! "$1/bin/pip" install --quiet --only-binary :all: 'mpi4py>=4.1,<5' >"$SCRATCH/log" 2>&1; then
        skip "Python with MPI: no mpi4py: $(tail -n 1 "$SCRATCH/log")"
    else
        by_mpi simulates python-mpi mpirun "$1/bin/python" "$PYTHON_EXAMPLES/heat.py" --mpi
        read -ra start <<<"${LAUNCHERS[mpirun]}"
        attempt "mpi4py: a program brings its servers" env TIDEWATER_INTERFACE=lo "${start[@]}" -n 3 \
            "$1/bin/python" client/python/tests/begin.py
        mv "$SCRATCH/log" "$SCRATCH/begin-python.log"
        attempt "mpi4py: its ranks add up" grep -qx 'sum 30' "$SCRATCH/begin-python.log"
    fi
}

# torch_python: prints a Python that has PyTorch: the one of the path, or Debian's.
torch_python() {
    local python
    for python in python3 /usr/bin/python3; do
        ! "$python" -c 'import torch' 2>/dev/null || { say "$python" && return; }
    done
    return 1
}

# test_torch: with --full, and the PyTorch for CPUs that is here, or that Debian has. It is too large for other runs.
test_torch() {
    local torch=$SCRATCH/torch python workers
    [[ ${TIDEWATER_TEST_FULL:-} == 1 ]] || { skip "PyTorch: with --full only, it is too large"; return; }
    python=$(torch_python) || { apt_install python3-torch python3-venv && python=$(torch_python); } ||
        { skip "PyTorch: not installed, and no package of Debian"; return; }
    "$python" -m venv --system-site-packages "$torch"
    attempt "pip installs the wheel beside PyTorch" "$torch/bin/pip" install --quiet "$SCRATCH"/wheels/*.whl || return 0
    attempt "torch_lr.py learns" "${RUN[@]}" "$torch/bin/python" "$PYTHON_EXAMPLES/torch_lr.py" && cat "$SCRATCH/log"
    for workers in 1 2 3; do
        attempt "embedding.py with $workers workers has the losses of PyTorch" "$TIDEWATER" run --servers 2 \
            --workers "$workers" -- "$torch/bin/python" "$PYTHON_EXAMPLES/embedding.py" && cat "$SCRATCH/log"
    done
    service_start
    attempt "a dataset of PyTorch" "$torch/bin/python" client/python/tests/test_data.py
    attempt "tidewater.torch" "$torch/bin/python" client/python/tests/test_torch.py "$COORDINATOR" "$SCRATCH/token"
    sed -n 's/^ok: /    /p' "$SCRATCH/log"
    service_stop
}

# test_scipy ENVIRONMENT: brings scipy for the tests of the Python client, with --full.
test_scipy() {
    if [[ ${TIDEWATER_TEST_FULL:-} != 1 ]]; then
        skip "scipy's L-BFGS-B: with --full only, it is too large"
    elif ! "$1/bin/pip" install --quiet --only-binary :all: scipy >"$SCRATCH/log" 2>&1; then
        skip "scipy's L-BFGS-B: no scipy: $(tail -n 1 "$SCRATCH/log")"
    fi
}

# build_wheel: into $SCRATCH/wheels, with the programs of the one build.
build_wheel() {
    timeout 600 scripts/build-wheel.sh "$SCRATCH/wheels" ci
}

# start_wheel: builds it beside the tests of other languages. From here to `test_python` no other command builds.
start_wheel() {
    has_venv || apt_install python3 python3-venv || { skip "Python: no python3 with venv"; return; }
    build_wheel >"$SCRATCH/wheel.log" 2>&1 &
    WHEEL=$!
}

# test_contents BIN: what the wheel installs is enough: servers inside Python, and the programs.
test_contents() {
    local only=(env -i -C "$SCRATCH" HOME="$SCRATCH" PATH="$1:/usr/bin:/bin")
    attempt "servers inside Python" "${only[@]}" python "$REPO_ROOT/client/python/tests/local.py"
    attempt "the program of the wheel runs a job" "${only[@]}" tidewater run --servers 2 -- python -c \
        'import tidewater; s = tidewater.Session(); assert s.servers == 2; s.leave()'
    attempt "python -m tidewater is that program" "${only[@]}" python -m tidewater run -- true
    attempt "the trainer of the wheel runs" "${only[@]}" tidewater-train --version
}

# test_python: the wheel is used in an environment that has it and numpy alone.
test_python() {
    local code=0 fresh=$SCRATCH/python
    [[ -n $WHEEL ]] || return 0
    wait "$WHEEL" || code=$?
    if ((code == NOTHING_TO_RUN)); then
        skip "Python: no venv with maturin: $(tail -n 1 "$SCRATCH/wheel.log")"
        return
    elif ((code != 0)); then
        not_ok "the wheel is built (exit code $code)"
        tail -n 20 "$SCRATCH/wheel.log" | sed 's/^/    /'
        return
    fi
    ok "the wheel is built"
    sed 's/^/    /' "$SCRATCH/wheel.log"
    attempt "the Python crate is formatted" cargo fmt --check --manifest-path client/python/Cargo.toml
    python3 -m venv "$fresh"
    if ! attempt "pip installs the wheel" "$fresh/bin/pip" install --quiet "$SCRATCH"/wheels/*.whl; then return 0; fi
    test_contents "$fresh/bin"
    simulates python "${RUN[@]}" "$fresh/bin/python" "$PYTHON_EXAMPLES/heat.py"
    test_mpi4py "$fresh"
    test_torch
    test_scipy "$fresh"
    attempt "readers of training data" "$fresh/bin/python" client/python/tests/test_data.py
    sed -n 's/^ok: /    /p; s/^not run: /    not run: /p' "$SCRATCH/log"
    attempt "jobs of the trainer" env PATH="$fresh/bin:$PATH" "$fresh/bin/python" client/python/tests/test_jobs.py
    service_start
    attempt "ten lines against a service" "$fresh/bin/python" client/python/tests/ten_lines.py "$COORDINATOR" "$SCRATCH/token"
    attempt "the Python client" "$fresh/bin/python" client/python/tests/test_client.py "$COORDINATOR" "$SCRATCH/token"
    sed -n 's/^ok: /    /p' "$SCRATCH/log"
    attempt "bandwidth of Rust" target/ci/examples/bandwidth "$COORDINATOR" "$SCRATCH/token" && cat "$SCRATCH/log"
    attempt "bandwidth of Python" "$fresh/bin/python" client/python/tests/bandwidth.py "$COORDINATOR" "$SCRATCH/token" && cat "$SCRATCH/log"
    service_stop
    service_start "${FUNCTIONS[@]}"
    attempt "Python calls functions by name" "$fresh/bin/python" client/python/tests/functions.py "$COORDINATOR" "$SCRATCH/token"
    service_stop
    launched attempt python "$fresh/bin/python" "$REPO_ROOT/client/python/tests/launched.py"
    adds_in_order python "${RUN[@]}" "$fresh/bin/python" client/python/tests/threads.py 2
    launched adds_in_order python "$fresh/bin/python" "$REPO_ROOT/client/python/tests/threads.py" 2
}

WARN=(-Wall -Wextra -Werror -pedantic)
FORTRAN=(-std=f2018 -Wall -Wextra -Werror -J "$SCRATCH")
need_cc
have pkg-config pkg-config || die "a user finds the library by pkg-config"
build_all
attempt "rust runs" bash -c '"${@:2}" >"$1"' - "$SCRATCH/rust.txt" "${RUN[@]}" target/ci/examples/heat || exit 1
cat "$SCRATCH/rust.txt"
attempt "four workers of one thread run" bash -c '"${@:2}" >"$1"' - "$SCRATCH/threads.txt" \
    "$TIDEWATER" run --servers 2 --workers 4 -- target/ci/examples/threads 1
adds_in_order rust "${RUN[@]}" target/ci/examples/threads 2
sed 's/^\(weight.1 .*\)e-1$/\1001e-1/; s/^\(loss.last [0-9.]\{6\}\)./\15/' "$SCRATCH/rust.txt" >"$SCRATCH/other.txt"
if same_numbers "$SCRATCH/rust.txt" "$SCRATCH/other.txt" >"$SCRATCH/log"; then not_ok "the comparison is blind"; else
    ok "the comparison notices: $(head -n 1 "$SCRATCH/log")"
fi
test_install
start_wheel
test_library
test_c
test_hostile
test_walltime
test_cpp
test_fortran
find_launchers
test_mpi
test_begin
test_python
report bindings "$passed" "$failed" 0
((${#SKIPPED[@]} == 0)) || note "not run: $(IFS=';' && say "${SKIPPED[*]}")"
((failed == 0))
