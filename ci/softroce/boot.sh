#!/usr/bin/env bash
# Boots one guest, runs a command in it and exits as the command did.
#
#   ci/softroce/boot.sh [OPTION...] COMMAND [ARGUMENT...]
#     --timeout S         of the whole, boot included (600)
#     --memory MIB        of the guest (4096)
#     --name NAME         of the host, and of the log target/softroce/out/NAME.console (guest)
#     --net NETDEV        a card on this netdev of QEMU's, "TYPE,PARAMETER=..." without its id
#     --address A         of that card, such as 10.9.0.1/24; rxe0 is on it
#     --terminal          the command talks to the terminal this runs in
#
# The guest sees the host's files and changes none of them: what it writes is lost, except under
# target/softroce/out of the checkout. Its output is the command's alone. The command starts in the
# folder this was called from, with PATH, HOME, TIDEWATER_* and RUST_* of here.
#
# Exit code: the command's; 124: out of time; 125: the guest died, its last words are printed.
# Always emulated (tcg): a /dev/kvm that exists need not work.
source "$(dirname "$0")/lib.sh"
TIMEOUT_S=600
MEMORY_MIB=4096
NAME=guest
NETDEV=
ADDRESS=
TERMINAL=
GRACE_S=5
GUEST_DIED=125
RUNNING=

usage() { sed -n '2,/^source/s/^# \{0,1\}//p' "$0" | sed '$d'; }

parse_arguments() {
    while (($# > 0)); do
        case $1 in
        --timeout) TIMEOUT_S=$2 ;;
        --memory) MEMORY_MIB=$2 ;;
        --name) NAME=$2 ;;
        --net) NETDEV=$2 ;;
        --address) ADDRESS=$2 ;;
        --terminal)
            [[ -t 0 && -t 1 ]] || die "--terminal: this is none"
            TERMINAL="$(stty size) $TERM" && shift
            continue
            ;;
        -h | --help) usage && exit 0 ;;
        -*) die "unknown option $1 (see --help)" ;;
        *) break ;;
        esac
        shift 2 || die "$1 needs a value"
    done
    (($# > 0)) || die "no command (see --help)"
    [[ -z $NETDEV || $ADDRESS == *.*.*.*/* ]] || die "--net needs an --address such as 10.9.0.1/24"
    COMMAND=("$@")
}

# write_job: what init starts in the guest. A file, since a kernel's command line is short and
# knows no quotes.
write_job() {
    local name
    say "$SOFTROCE_OUT" >"$JOB/path"
    {
        for name in PATH HOME "${!TIDEWATER_@}" "${!RUST_@}"; do
            printf 'export %s=%q\n' "$name" "${!name:-}"
        done
        printf 'export SOFTROCE_NAME=%q SOFTROCE_ADDRESS=%q SOFTROCE_TERMINAL=%q\n' \
            "$NAME" "$ADDRESS" "$TERMINAL"
        printf 'cd %q\nexec %q' "$CALLED_FROM" "$REPO_ROOT/ci/softroce/guest.sh"
        printf ' %q' "${COMMAND[@]}"
        say
    } >"$JOB/start"
}

# mac: of the card, after the last number of its address.
mac() {
    local last=${ADDRESS%/*}
    printf '52:54:00:00:00:%02x' "${last##*.}"
}

# qemu_arguments: sets QEMU. Descriptors 3 and 4 are to receive the command's two outputs.
qemu_arguments() {
    local job=${JOB//,/,,} out=${SOFTROCE_OUT//,/,,} # a comma ends a value there
    # tsc: emulated processors share one counter, which the kernel doubts; without it a look at the
    # clock leaves the guest and costs 700 ns instead of 100. panic, oops: a broken kernel ends at once.
    local kernel="console=ttyS0 quiet loglevel=5 panic=-1 oops=panic mitigations=off tsc=reliable"
    QEMU=(qemu-system-x86_64 -nodefaults -display none -no-reboot
        -machine q35 -accel "tcg,thread=multi" -cpu max -smp 2 -m "$MEMORY_MIB"
        -kernel "$SOFTROCE_DIR/kernel" -initrd "$SOFTROCE_DIR/initrd.img"
        -append "$kernel job=$(basename "$JOB")"
        -chardev "file,id=console,path=$job/console" -serial chardev:console
        -fsdev "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"
        -device "virtio-9p-pci,fsdev=host,mount_tag=host"
        -fsdev "local,id=out,path=$out,security_model=none"
        -device "virtio-9p-pci,fsdev=out,mount_tag=out"
        -add-fd "fd=3,set=1" -chardev "file,id=stdout,path=/dev/fdset/1,append=on"
        -add-fd "fd=4,set=2" -chardev "file,id=stderr,path=/dev/fdset/2,append=on"
        -device virtio-serial-pci
        -device "virtserialport,chardev=stdout,name=stdout"
        -device "virtserialport,chardev=stderr,name=stderr")
    [[ -z $TERMINAL ]] || QEMU+=(-chardev "stdio,id=terminal,signal=off" -device "virtconsole,chardev=terminal")
    [[ -z $NETDEV ]] || QEMU+=(-netdev "$NETDEV,id=net"
        # rxe needs 4200 bytes of a card for an MTU of 4096; without a MAC all guests have the same.
        -device "virtio-net-pci,netdev=net,host_mtu=4200,mac=$(mac)")
}

# run_qemu: whatever kills this script, nothing of it stays: each ends with its parent.
run_qemu() {
    local code=0 cats=() stdin=/dev/null foreground=()
    [[ -z $TERMINAL ]] || stdin=/dev/tty foreground=(--foreground)
    # A pipe of our own: QEMU wants a descriptor that is only written to, and makes it non-blocking.
    exec 3> >(exec cat) && cats+=($!)
    exec 4> >(exec cat >&2) && cats+=($!)
    setpriv --pdeathsig TERM timeout "${foreground[@]}" -k "$GRACE_S" "$TIMEOUT_S" \
        setpriv --pdeathsig KILL "${QEMU[@]}" <"$stdin" &
    RUNNING=$!
    exec 3>&- 4>&-
    wait "$RUNNING" || code=$?
    RUNNING=
    wait "${cats[@]}"
    return "$code"
}

# shellcheck disable=SC2317  # the trap calls it
ended() {
    if [[ -n $RUNNING ]]; then
        kill -TERM "$RUNNING" 2>/dev/null || true
        wait "$RUNNING" || true
    fi
    [[ ! -f $JOB/console ]] || mv "$JOB/console" "$SOFTROCE_OUT/$NAME.console"
    rm -rf "$JOB"
}

# kernel_complaints: a warning of the guest's kernel belongs to who provoked it.
kernel_complaints() {
    [[ -f $JOB/console ]] || return 0
    grep -aE 'WARNING:|BUG:|Oops|Kernel panic|blocked for more than|softroce: cannot' "$JOB/console" |
        sed "s/^/$NAME: /" >&2 || true
}

parse_arguments "$@"
mkdir -p "$SOFTROCE_OUT"
"$REPO_ROOT/ci/softroce/image.sh" >&2
JOB=$(mktemp -d "$SOFTROCE_OUT/job.XXXXXXXX")
trap ended EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
write_job
qemu_arguments
code=0
run_qemu || code=$?
kernel_complaints
if ((code == 124 || code == 137)); then
    warn "the guest was stopped after $TIMEOUT_S s"
    exit 124
fi
[[ ! -s $JOB/exit ]] || exit "$(cat "$JOB/exit")"
[[ ! -f $JOB/console ]] || tail -n 30 "$JOB/console" >&2
warn "the guest died without an exit code (QEMU's: $code); above are its last words"
exit "$GUEST_DIED"
