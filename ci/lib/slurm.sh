# shellcheck shell=bash
# A Slurm of one node, for this user, on 127.0.0.1 only: munged, slurmctld, slurmd. No systemd, no
# cgroups, no /etc. Source it; set S to a short absolute folder (unix sockets are in it).

# slurm_here: whether Slurm is here, or could be unpacked from Debian's packages. They are not installed: that would
# add users, a key in /etc and three services.
slurm_here() {
    local root=$REPO_ROOT/target/tools/slurm program file missing=""
    for program in munged slurmctld slurmd srun; do
        command -v "$program" >/dev/null || missing=$program
    done
    SLURM_ROOT=
    [[ -n $missing ]] || return 0
    command -v apt-get >/dev/null || return 1
    if [[ ! -e $root/complete ]]; then
        rm -rf "$root"
        mkdir -p "$root/debs/partial" "$root/bin"
        apt-get install -qq -y --no-install-recommends --download-only -o Debug::NoLocking=1 \
            -o "Dir::Cache::archives=$root/debs" slurmctld slurmd slurm-client munge >"$root/log" 2>&1 || return 1
        for file in "$root"/debs/*.deb; do dpkg -x "$file" "$root" || return 1; done
        # Debian's names of them are managed by alternatives.
        for file in "$root"/usr/{s,}bin/*; do
            program=${file##*/}
            ln -sf "$file" "$root/bin/${program%-wlm}"
        done
        rm -rf "$root/debs"
        : >"$root/complete"
    fi
    SLURM_ROOT=$root
    for file in "$root"/usr/lib/*-linux-gnu; do
        SLURM_PLUGINS=$file/slurm-wlm
        export LD_LIBRARY_PATH=$file:$file/slurm-wlm${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    done
    export PATH=$root/bin:$PATH
}

# slurm_alive PID
slurm_alive() {
    [[ -d /proc/$1 ]] && ! grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null
}

# slurm_down: ends what slurm_up started, the daemons before munged.
slurm_down() {
    local file pid _
    for file in "$S"/pid.*; do
        [[ -f $file ]] || continue
        pid=$(<"$file")
        kill "$pid" 2>/dev/null || true
        for _ in {1..50}; do
            slurm_alive "$pid" || break
            sleep 0.1
        done
        ! slurm_alive "$pid" || kill -9 "$pid" 2>/dev/null || true
        rm -f "$file"
    done
}

slurm_config() {
    local host=$1 user=$2 port=$3
    cat <<END
ClusterName=tidewater
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$S/munge.sock
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=2
TmpFS=$S/tmp
StateSaveLocation=$S/ctld
SlurmdSpoolDir=$S/spool
SlurmctldPidFile=$S/ctld/pid
SlurmdPidFile=$S/spool/pid
SlurmctldLogFile=$S/log/slurmctld.log
SlurmdLogFile=$S/log/slurmd.log
SlurmdParameters=config_overrides
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
${SLURM_ROOT:+PluginDir=$SLURM_PLUGINS}
NodeName=$host NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=8 State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
}

# slurm_up: starts it and waits until the node is idle; says why and fails if it does not become so.
slurm_up() {
    local host port _ end file
    host=$(hostname -s)
    # Of this run alone: two of them may be on one machine. Below the system's own range.
    port=$((20000 + $$ % 5000 * 2))
    export SLURM_CONF=$S/slurm.conf
    mkdir -p "$S"/{munge,ctld,log,tmp,spool}
    chmod 755 "$S"
    chmod 700 "$S/munge"
    head -c 128 /dev/urandom >"$S/munge/key"
    chmod 600 "$S/munge/key"
    munged -F --force --key-file "$S/munge/key" --socket "$S/munge.sock" \
        --pid-file "$S/munge/pid" --log-file "$S/munge/log" --seed-file "$S/munge/seed" \
        --num-threads 2 </dev/null >"$S/log/munged.out" 2>&1 &
    echo $! >"$S/pid.z-munged"
    slurm_config "$host" "$(id -un)" "$port" >"$SLURM_CONF"
    for _ in {1..50}; do
        [[ ! -S $S/munge.sock ]] || break
        sleep 0.02
    done
    slurmctld -D -i -c -f "$SLURM_CONF" </dev/null >"$S/log/ctld.out" 2>&1 &
    echo $! >"$S/pid.y-ctld"
    slurmd -D -N "$host" ${SLURM_ROOT:+-d "$SLURM_ROOT/bin/slurmstepd"} -f "$SLURM_CONF" </dev/null >"$S/log/slurmd.out" 2>&1 &
    echo $! >"$S/pid.a-slurmd"
    end=$((SECONDS + 20))
    until [[ $(timeout 3 sinfo -h -N -o %T 2>/dev/null) == idle ]]; do
        for file in "$S"/pid.*; do
            slurm_alive "$(<"$file")" || end=0
        done
        if ((SECONDS >= end)); then
            tail -n 4 "$S"/log/*.out >&2
            return 1
        fi
        sleep 0.1
    done
}
