# shellcheck shell=bash
# Sourced in a guest: addresses of RDMA devices, and perftest's programs with what they found.
PERFTEST_S=60      # a pair that takes longer hangs
PERFTEST_ATTEMPTS=4 # it tells no time if its own look at the processor's clock was disturbed

# gid_index DEVICE ADDRESS: of the IPv4 address's entry, which is not the same on every device.
gid_index() {
    local a b c d gid file
    IFS=. read -r a b c d <<<"$2"
    gid=$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' "$a" "$b" "$c" "$d")
    file=$(grep -lxF "$gid" "/sys/class/infiniband/$1/ports/1/gids/"[0-9]) || {
        printf 'no GID %s on %s\n' "$gid" "$1" >&2
        return 1
    }
    basename "$file"
}

# wait_for_port PORT: until somebody listens there.
wait_for_port() {
    local i
    for ((i = 0; i < 200; i++)); do
        ! ss -Hltn "sport = :$1" | grep -q . || return 0
        sleep 0.05
    done
    printf 'nobody listens on port %s\n' "$1" >&2
    return 1
}

# perftest_figure PROGRAM: of its output, the typical latency in microseconds, or the average MB/s.
perftest_figure() {
    awk -v column="$([[ $1 == *_lat ]] && echo 5 || echo 4)" '
        /^ *#bytes/ { table = 1; next }
        table && $1 + 0 > 0 { figure = $column }
        END { if (figure !~ /^[0-9.]+$/ || figure == 0) exit 1; print figure }'
}

# perftest_once LOG DEVICE INDEX ADDRESS PROGRAM [ARGUMENT...]: what the client says is in LOG.
perftest_once() {
    local log=$1 device=$2 index=$3 address=$4 server code=0
    shift 4
    timeout "$PERFTEST_S" "$@" -d "$device" -x "$index" >/dev/null 2>&1 &
    server=$!
    wait_for_port 18515 &&
        timeout "$PERFTEST_S" "$@" -d "$device" -x "$index" "$address" >"$log" 2>&1 || code=$?
    wait "$server" || code=$?
    return "$code"
}

# perftest DEVICE ADDRESS PROGRAM [ARGUMENT...]: both ends on this host; prints the figure.
perftest() {
    local device=$1 address=$2 index log i code=1
    shift 2
    index=$(gid_index "$device" "$address") || return 1
    log=$(mktemp)
    for ((i = 0; i < PERFTEST_ATTEMPTS; i++)); do
        perftest_once "$log" "$device" "$index" "$address" "$@" || true
        perftest_figure "$1" <"$log" && code=0 && break
    done
    ((code == 0)) || cat "$log" >&2
    rm -f "$log"
    return "$code"
}

# meet NAME [SECONDS]: of two guests: returns when the other has come there, too. Through the folder
# that both share with the host, so a wire that loses everything does not matter.
meet() {
    local until=$((SECONDS + ${2:-60}))
    : >"$SOFTROCE_MEETING/$1.$SOFTROCE_HOST"
    while ((SECONDS < until)); do
        [[ ! -e $SOFTROCE_MEETING/$1.a || ! -e $SOFTROCE_MEETING/$1.b ]] || return 0
        sleep 0.1
    done
    printf 'the other host did not come to %s\n' "$1" >&2
    return 1
}
