#!/usr/bin/env bash
# Runs in the guest: makes its RDMA devices, then runs the command it was given, with what it
# prints going to the host.
#
# Alone, a guest has rxe0 on lo (127.0.0.1, ::1) and rxe1 on a card that leads nowhere (10.9.0.1):
# two, so that who takes any device instead of the one with the connection's address is found out.
# With SOFTROCE_ADDRESS it has rxe0 on the card that leads to the other guest.
set -euo pipefail
# shellcheck source=ci/softroce/rdma.sh
source "$(dirname "$0")/rdma.sh"
HUGEPAGES=64  # of 2 MiB; each costs some milliseconds of the boot
CARD_MTU=4200 # bytes that an RDMA MTU of 4096 needs
DRAIN_S=2     # for the rest of the output, once the command has ended

die() {
    printf 'error: guest: %s\n' "$*" >&2
    exit 1
}

# add_device NAME NETDEV ADDRESS: and waits for the GID; the kernel makes it a moment later.
add_device() {
    local i
    rdma link add "$1" type rxe netdev "$2"
    for ((i = 0; i < 100; i++)); do
        ! gid_index "$1" "$3" >/dev/null 2>&1 || return 0
        sleep 0.05
    done
    die "$1 has no GID for $3"
}

make_devices() {
    ip link set lo up
    if [[ -n ${SOFTROCE_ADDRESS:-} ]]; then
        ip link set eth0 mtu "$CARD_MTU" up
        ip address add "$SOFTROCE_ADDRESS" dev eth0
        add_device rxe0 eth0 "${SOFTROCE_ADDRESS%/*}"
    else
        add_device rxe0 lo 127.0.0.1
        # The module makes dummy0 when it is loaded, unless the host's /lib/modprobe.d (systemd) says otherwise.
        [[ -e /sys/class/net/dummy0 ]] || ip link add dummy0 type dummy
        ip link set dummy0 mtu "$CARD_MTU" arp on up # who looks for a neighbour there waits for an answer
        ip address add 10.9.0.1/24 dev dummy0
        add_device rxe1 dummy0 10.9.0.1
    fi
}

# port NAME: the device that QEMU calls so. It is named a moment after it is there.
port() {
    local i file
    for ((i = 0; i < 100; i++)); do
        file=$(grep -lsxF "$1" /sys/class/virtio-ports/*/name) && break
        sleep 0.05
    done
    [[ -n $file ]] || die "no port $1 to the host"
    printf '/dev/%s\n' "$(basename "$(dirname "$file")")"
}

# carry PORT FIFO: what is written to the fifo goes to the host. A port can be opened only once,
# and programs like to open /dev/stdout.
carry() {
    local device
    device=$(port "$1")
    mkfifo "$2"
    cat "$2" >"$device" &
    CATS+=($!)
}

# drained: all output is with the host. A process that was left behind may hold it open: the host is
# told which, and it ends with the guest.
drained() {
    local until=$((SECONDS + DRAIN_S)) process words
    while ((SECONDS < until)); do
        kill -0 "${CATS[@]}" 2>/dev/null || return 0
        sleep 0.05
    done
    for process in /proc/[0-9]*; do
        [[ " 1 $$ ${CATS[*]} " != *" ${process#/proc/} "* ]] || continue
        # A kernel thread has no words.
        mapfile -d '' -t words 2>/dev/null <"$process/cmdline" || continue
        ((${#words[@]} == 0)) || printf 'guest: left running: %s\n' "${words[*]}" >/run/stderr
    done
    sleep 0.5
}

# run COMMAND...: where its output goes by now, or on the terminal: "ROWS COLUMNS TYPE".
run() {
    local terminal=${SOFTROCE_TERMINAL:-} rows columns
    unset SOFTROCE_NAME SOFTROCE_ADDRESS SOFTROCE_TERMINAL
    [[ -n $terminal ]] || { "$@"; return; }
    read -r rows columns TERM <<<"$terminal"
    export TERM
    stty rows "$rows" columns "$columns" </dev/hvc0
    setsid --ctty --wait "$@" <>/dev/hvc0 >&0 2>&1
}

ulimit -l unlimited
printf '%s\n' "$SOFTROCE_NAME" >/proc/sys/kernel/hostname
printf '127.0.1.1 %s\n' "$SOFTROCE_NAME" >>/etc/hosts
printf '%s\n' "$HUGEPAGES" >/proc/sys/vm/nr_hugepages
CATS=()
carry stdout /run/stdout
carry stderr /run/stderr
exec 3>/run/stdout 4>/run/stderr # opened here, so that neither cat ends before the command
{
    make_devices
    code=0
    run "$@" 3>&- 4>&- || code=$?
} >&3 2>&4
exec 3>&- 4>&-
drained
exit "$code"
