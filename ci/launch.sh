#!/usr/bin/env bash
# The trainer under real launchers, from Debian's packages: Open MPI's mpirun, MPICH's hydra, Slurm's
# srun. Each must train the model that `tidewater run` trains, to the bit, with servers of their own
# and with one program for all; say who is what and where; end with an error that names the one that
# was killed; and leave nothing.
source "$(dirname "$0")/lib.sh"
source ci/lib/slurm.sh
source ci/lib/openmpi.sh
STEP=60 # seconds after which a launcher that hangs is ended
scratch_dir
S=$SCRATCH/s
trap 'slurm_down; rm -rf -- "$SCRATCH"' EXIT

cargo build --locked --profile ci -p tidewater-server -p tidewater-client --bins --features "$FEATURES"
PATH=$PWD/target/ci:$PATH
cd "$SCRATCH"
tidewater-train generate --rows 3000 --features 500 --out train
tidewater-train generate --rows 1000 --first 3000 --features 500 --out test
LR=(tidewater-train lr --train "$SCRATCH/train" --test "$SCRATCH/test")
SERVER=(tidewater server --hugepages off)
export LAUNCH_MARK=$$-$RANDOM

# Launchers listen on all addresses whatever they are told: they get a network of their own, in which
# two names can be two hosts that reach each other by 10.9.0.1.
# shellcheck disable=SC2016 # expanded inside
NET='mount -t sysfs none /sys && ip link set lo up && ip link add tw0 type veth peer name tw1 &&
    ip addr add 10.9.0.1/24 dev tw0 && ip link set tw0 up && ip link set tw1 up && exec "$@"'
ISOLATED=(unshare -nm sh -c "$NET" sh)
"${ISOLATED[@]}" true 2>/dev/null || ISOLATED=()
cat >fakessh <<'END'
#!/bin/sh
# A remote shell to another name of this host.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
exec unshare -u sh -c "hostname $host; $*"
END
chmod +x fakessh

OMPI=("${ISOLATED[@]}" mpirun.openmpi --bind-to none)
HYDRA=("${ISOLATED[@]}" mpiexec.hydra -iface lo)

passed=0 failed=0 missing=()
ok() {
    passed=$((passed + 1))
    say "ok: $*"
}
wrong() {
    failed=$((failed + 1))
    say "FAILED: $*"
    sed 's/^/    /' log | tail -n 40
}

# expect WHAT CONDITION...: counts it.
expect() {
    local what=$1
    shift
    if "$@"; then ok "$what"; else wrong "$what"; fi
}

# run COMMAND...: under a deadline, all it says in `log`; sets rc.
run() {
    rc=0
    rm -f out.json
    timeout -k 5 "$STEP" "$@" </dev/null >log 2>&1 || rc=$?
}

# environ PATTERN: ids of living processes with a variable that is, wholly, PATTERN.
environ() {
    grep -lzxE "$1" /proc/[0-9]*/environ 2>/dev/null | tr -dc '0-9\n' || true
}

# marked: ids of living processes of this run's jobs: servers and trainers, not their launchers.
marked() {
    local pid
    for pid in $(environ "LAUNCH_MARK=$LAUNCH_MARK"); do
        ! grep -qzE '(^|/)tidewater(-train)?$' "/proc/$pid/cmdline" 2>/dev/null || echo "$pid"
    done
}

# rank_pid RANK: of the running job.
rank_pid() {
    comm -12 <(marked | sort) <(environ "(OMPI_COMM_WORLD_RANK|PMI_RANK|SLURM_PROCID)=$1" | sort)
}

# nothing_left: no process within 5 s, no file of a meeting.
nothing_left() {
    local _
    for _ in {1..50}; do
        [[ -n $(marked) ]] || break
        sleep 0.1
    done
    [[ -z $(marked) && ! -e .tidewater ]] || {
        say "left: $(marked) $(ls -A .tidewater 2>/dev/null)"
        return 1
    }
}

fingerprint() { sed -n 's/^  "fingerprint": "\(.*\)",$/\1/p' out.json 2>/dev/null; }

# is RANK WHAT HOST: rank RANK of 6 has said that it is WHAT, and where.
is() {
    local line="rank $1 of 6 on $3 is $2,"
    grep -qF "$line" log || { say "nobody said: $line" && return 1; }
}

# trained NAME HOSTS PARTS...: the last run trained the model; rank i was part i, on host i.
trained() {
    local name=$1 hosts rank=0 part fine=true
    read -ra hosts <<<"$2"
    shift 2
    for part in "$@"; do
        is "$rank" "$part" "${hosts[rank % ${#hosts[@]}]}" || fine=false
        rank=$((rank + 1))
    done
    [[ $rc == 0 && $(fingerprint) == "$MODEL" ]] || fine=false
    nothing_left || fine=false
    expect "$name: rc $rc, model $(fingerprint)" "$fine"
}

MPMD=("server 0 of 2" "server 1 of 2" "worker 0 of 4" "worker 1 of 4" "worker 2 of 4" "worker 3 of 4")
SPMD=("server 0 of 2" "worker 0 of 4" "worker 1 of 4" "server 1 of 2" "worker 2 of 4" "worker 3 of 4")
HERE=$(uname -n)

# both NAME LAUNCHER...: servers of their own, and one program for all.
both() {
    local name=$1
    shift
    run "$@" -n 2 "${SERVER[@]}" : -n 4 "${LR[@]}" --json out.json
    trained "$name, servers and trainers" "$HERE" "${MPMD[@]}"
    run "$@" -n 6 "${LR[@]}" --json out.json --servers 2
    trained "$name, one program" "$HERE" "${SPMD[@]}"
}

# long NAME COMMAND...: a job that goes on for long, until it trains; sets job.
long() {
    local _
    : >log # what the job before said is not of this one
    "$@" </dev/null >log 2>&1 &
    job=$!
    for _ in {1..200}; do
        ! grep -q 'epoch 2/' log || return 0
        sleep 0.1
    done
    return 1
}

# over: the job has ended within 30 s; sets rc.
over() {
    local _
    for _ in {1..300}; do
        slurm_alive "$job" || break
        sleep 0.1
    done
    if slurm_alive "$job"; then
        marked | xargs -r kill -9 "$job" 2>/dev/null || true
        rc=hung
        return 1
    fi
    rc=0
    wait "$job" || rc=$?
}

# killed NAME SURVIVORS COMMAND...: rank 4 is killed; so many others say by themselves who it was.
killed() {
    local name=$1 survivors=$2 pid named fine=true
    shift 2
    long timeout -k 5 "$STEP" "$@" || fine=false
    pid=$(rank_pid 4)
    [[ $pid =~ ^[0-9]+$ ]] && kill -9 "$pid" || fine=false
    over || fine=false
    nothing_left || fine=false
    named=$(grep -c "rank 4 (pid $pid on $HERE): its connection ended" log) || true
    ((named >= survivors)) || fine=false
    expect "$name: rank 4 killed, $named others name it, rc $rc" "$fine"
}

# signalled NAME COMMAND...: SIGUSR1 to the launcher ends the step, saves, and ends all with 138.
signalled() {
    local name=$1 ended launcher fine=true
    shift
    long "$@" || fine=false
    # The launcher is the job itself, or what a shell around it became.
    launcher=$job
    kill -USR1 "$launcher" || fine=false
    over || fine=false
    nothing_left || fine=false
    ended=$(grep -c 'ended by signal 10' log) || true
    [[ $ended -ge 1 && -n $(ls -A saved 2>/dev/null) ]] || fine=false
    rm -rf saved
    expect "$name: SIGUSR1, $ended workers say so, the model is saved, rc $rc" "$fine"
}

try_open_mpi() {
    both "Open MPI" "${OMPI[@]}"
    run "${OMPI[@]}" -n 2 "${LR[@]}"
    local alone=false
    [[ $rc == 0 ]] || ! grep -q 'none of the 2 processes is a server' log || alone=true
    nothing_left || alone=false
    expect "Open MPI: trainers without servers are no silent singletons, rc $rc" "$alone"
    killed "Open MPI" 5 "${OMPI[@]}" --enable-recovery -n 2 "${SERVER[@]}" : \
        -n 4 "${LR[@]}" --epochs 1000000
    signalled "Open MPI" "${OMPI[@]}" -n 2 "${SERVER[@]}" : \
        -n 4 "${LR[@]}" --epochs 1000000 --save saved
    if ((${#ISOLATED[@]})); then
        run "${OMPI[@]}" --mca plm_rsh_agent "$SCRATCH/fakessh" --host n1:3,n2:3 \
            -n 2 "${SERVER[@]}" : -n 4 "${LR[@]}" --json out.json
        trained "Open MPI, two hosts" "n1 n1 n1 n2 n2 n2" "${MPMD[@]}"
    fi
}

try_hydra() {
    both hydra "${HYDRA[@]}"
    # It kills all others by itself, at once.
    killed hydra 0 "${HYDRA[@]}" -n 2 "${SERVER[@]}" : -n 4 "${LR[@]}" --epochs 1000000
    signalled hydra "${HYDRA[@]}" -n 2 "${SERVER[@]}" : \
        -n 4 "${LR[@]}" --epochs 1000000 --save saved
    if ((${#ISOLATED[@]})); then
        run "${HYDRA[@]}" -launcher ssh -launcher-exec "$SCRATCH/fakessh" -hosts n1:3,n2:3 \
            -n 2 "${SERVER[@]}" : -n 4 "${LR[@]}" --json out.json
        trained "hydra, two hosts" "n1 n1 n1 n2 n2 n2" "${MPMD[@]}"
    fi
}

try_slurm() {
    slurm_up || {
        wrong "Slurm does not start"
        return
    }
    # Programs of one step are told apart by a file.
    printf '%s\n' "0-1 ${SERVER[*]}" "2-5 ${LR[*]} --json out.json" >parts
    local mpi
    for mpi in none pmi2; do
        run srun -Q --mpi=$mpi -n 6 --multi-prog parts
        trained "srun --mpi=$mpi, servers and trainers" "$HERE" "${MPMD[@]}"
        run srun -Q --mpi=$mpi -n 6 "${LR[@]}" --json out.json --servers 2
        trained "srun --mpi=$mpi, one program" "$HERE" "${SPMD[@]}"
    done
    printf '%s\n' "0-1 ${SERVER[*]}" "2-5 ${LR[*]} --epochs 1000000" >parts
    printf '%s\n' "0-1 ${SERVER[*]}" "2-5 ${LR[*]} --epochs 1000000 --save $SCRATCH/saved" >long
    signalled srun srun -Q --mpi=none -n 6 --multi-prog long
    killed srun 5 srun -Q --mpi=none --kill-on-bad-exit=0 -n 6 --multi-prog parts
    if command -v mpirun.openmpi >/dev/null; then
        # In a job's shell everybody inherits SLURM_PROCID=0, or nothing; mpirun's word counts.
        run salloc -Q -n 6 mpirun.openmpi --bind-to none \
            -n 2 "${SERVER[@]}" : -n 4 "${LR[@]}" --json out.json
        trained "mpirun in salloc" "$HERE" "${MPMD[@]}"
    fi
    local script
    for script in slurm slurm-mpirun; do
        rm -rf model model.json
        TRAIN=$SCRATCH/train SAVE=$SCRATCH/model \
            run sbatch -Q --wait -n 6 -o "$SCRATCH/log" "$REPO_ROOT/scripts/examples/$script.sbatch"
        is 5 "worker 3 of 4" "$HERE" && [[ -s model.json && -n $(ls -A model) ]] || rc=1
        nothing_left || rc=1
        expect "scripts/examples/$script.sbatch, rc $rc" [ "$rc" = 0 ]
    done
    slurm_down
}

# with PROGRAM FUNCTION PACKAGE...: if the launcher is there or can be installed.
with() {
    local program=$1 try=$2
    shift 2
    if have "$program" "$@"; then
        "$try"
    else
        missing+=("$program")
        say "left out: $program is not here, and $* cannot be installed"
    fi
}

run tidewater run --servers 2 --workers 4 -- "${LR[@]}" --json out.json
MODEL=$(fingerprint)
[[ $rc == 0 && -n $MODEL ]] || die "tidewater run itself fails: $(<log)"
say "the model of tidewater run: $MODEL"
with mpirun.openmpi try_open_mpi openmpi-bin
with mpiexec.hydra try_hydra mpich
with slurmd try_slurm slurmctld slurmd slurm-client munge
((passed + failed > 0)) || nothing_to_run "no launcher is here, and none can be installed"
((${#missing[@]} == 0)) || note "without ${missing[*]}"
report launch "$passed" "$failed" 0
((failed == 0))
