#!/usr/bin/env bash
# Runs a command in a clone of HEAD, in a root file system that holds Debian's minimal system, git (with
# its certificates) and this host's Rust toolchain, and nothing else. Shows what the project needs and
# does not say. Needs root, debootstrap, rustup.
#
#   ci/empty-root.sh [OPTION...] [COMMAND...]   COMMAND: ./ci/all.sh unless given
#
#   --dir DIR      folder of the root file systems: 1 GB, and 15 GB while ./ci/all.sh runs
#                  (/var/tmp/tidewater-empty-root)
#   --keep         keep the root file system of a run that succeeds; that of one that fails is kept
#   --again        enter the root file system that the last run has left, with its clone and its build
#   --mirror URL   Debian's packages (that of the host's apt, else http://deb.debian.org/debian)
#   --suite NAME   Debian's release (bookworm)
#
# The command runs as root in mount and PID namespaces of its own, and ends with all its processes. It shares
# the host's network. Installing is allowed there (CI_INSTALL=1). The host's settings of apt, cargo
# and pip, its certificates and resolver are mounted read-only or stay in the environment; none is copied.
# Exit code: that of the command.
source "$(dirname "$0")/lib.sh"
DIR=/var/tmp/tidewater-empty-root
SUITE=bookworm
MIRROR=
KEEP=0 AGAIN=0
PROGRAMS=/opt/rust # inside: rustup and its names. The toolchains are where the host has them.
CLONE=/src/tidewater
THEIR_HOME=/root # that of the command
PROXIES=(cargo rustc rustdoc rustfmt cargo-fmt cargo-clippy clippy-driver)
# Variables that the command inherits: the network's, the package managers', and what tests are asked by.
PASSED='^([A-Za-z]+_(proxy|PROXY)|PIP_.*|CARGO_(HTTP|NET|REGISTRY|REGISTRIES|SOURCE)_.*|RUSTUP_.*|SSL_CERT_.*)$'
PASSED+='|^(CURL_CA_BUNDLE|REQUESTS_CA_BUNDLE|GIT_SSL_CAINFO|TERM|TIDEWATER_SEED|TIDEWATER_TEST_.*)$'

usage() { sed -n '2,/^source/s/^# \{0,1\}//p' "$0" | sed '/^source/d'; }

parse_arguments() {
    while (($# > 0)); do
        case $1 in
        --dir | --mirror | --suite)
            [[ -n ${2:-} ]] || die "$1 needs a value (see --help)"
            case $1 in --dir) DIR=$2 ;; --mirror) MIRROR=$2 ;; --suite) SUITE=$2 ;; esac
            shift
            ;;
        --keep) KEEP=1 ;;
        --again) AGAIN=1 ;;
        -h | --help) usage && exit 0 ;;
        -*) die "unknown option $1 (see --help)" ;;
        *) break ;;
        esac
        shift
    done
    COMMAND=("$@")
    ((${#COMMAND[@]} > 0)) || COMMAND=(./ci/all.sh)
}

# host_codename: the Debian release of this host; empty on another system.
host_codename() {
    # shellcheck source=/dev/null
    (. /etc/os-release 2>/dev/null && [[ ${ID:-} == debian ]] && say "${VERSION_CODENAME:-}") || true
}

# apt_mirror: the first archive of the host's apt, if the host is of the same release.
apt_mirror() {
    local found=
    if [[ $(host_codename) == "$SUITE" ]]; then
        found=$(cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
            sed -nE 's/^(URIs:|deb( +\[[^]]*\])?) +([^ ]+\/debian\/?)( .*)?$/\3/p' | head -n 1)
    fi
    say "${found:-http://deb.debian.org/debian}"
}

# make_base: the minimal system, once for each suite. A run never writes to it.
make_base() {
    local partial=$BASE.partial
    [[ ! -d $BASE ]] || return 0
    rm -rf --one-file-system "$partial"
    say "debootstrap: $SUITE, minimal, from ${MIRROR:=$(apt_mirror)}"
    debootstrap --variant=minbase --include=git,ca-certificates "$SUITE" "$partial" "$MIRROR" \
        >"$DIR/debootstrap.log" 2>&1 ||
        die "debootstrap failed: $(tail -n 3 "$DIR/debootstrap.log"); log: $DIR/debootstrap.log"
    rm -f "$partial"/var/cache/apt/archives/*.deb
    mv "$partial" "$BASE"
}

# make_run: an empty layer over the base, and a clone of HEAD beside it on a plain file system.
make_run() {
    rm -rf --one-file-system "$RUN"
    mkdir -p "$RUN"/{upper,work,root,src}
    git diff --quiet HEAD || warn "uncommitted changes are not part of the clone"
    git clone --quiet --no-hardlinks "$REPO_ROOT" "$RUN/src/${CLONE##*/}"
}

# --- Inside the namespaces, before the new root is entered. ---

# show SOURCE TARGET: mounts a file or folder of the host read-only at TARGET of the new root.
show() {
    local source target=$ROOT$2
    source=$(readlink -e "$1") || return 0
    if [[ -d $source ]]; then mkdir -p "$target"; else
        mkdir -p "$(dirname "$target")"
        # A link there leads out of the new root.
        [[ ! -L $target ]] || rm -f "$target"
        [[ -e $target ]] || : >"$target"
    fi
    mount --bind "$source" "$target"
    mount -o remount,bind,ro "$target"
}

show_settings() {
    local name keyring
    show /etc/resolv.conf /etc/resolv.conf
    show /etc/hosts /etc/hosts
    show /etc/ssl/certs /etc/ssl/certs
    if [[ $(host_codename) == "$SUITE" ]]; then
        show /etc/apt /etc/apt
        # Keys that the host's sources name and the minimal system lacks.
        while IFS= read -r keyring; do
            [[ -e $ROOT$keyring ]] || show "$keyring" "$keyring"
        done < <(grep -rhoE '(Signed-By: *|signed-by=)/[^] ]+' /etc/apt/sources.list* 2>/dev/null |
            grep -oE '/.*' | sort -u)
    else
        show /etc/apt/apt.conf.d /etc/apt/apt.conf.d
        show /etc/apt/auth.conf.d /etc/apt/auth.conf.d
    fi
    show /etc/pip.conf /etc/pip.conf
    show "$HOME/.config/pip/pip.conf" "$THEIR_HOME/.config/pip/pip.conf"
    for name in config.toml config; do
        show "${CARGO_HOME:-$HOME/.cargo}/$name" "$THEIR_HOME/.cargo/$name"
    done
    # What the variables name by its path.
    for name in $(compgen -e | grep -E "$PASSED"); do
        [[ ${!name} != /* || -e $ROOT${!name} || $name == RUSTUP_HOME ]] || show "${!name}" "${!name}"
    done
}

show_toolchain() {
    local name
    # Toolchains may be links within this folder.
    show "$RUSTUP_HOME" "$RUSTUP_HOME"
    show "$(command -v rustup)" "$PROGRAMS/rustup"
    for name in "${PROXIES[@]}"; do ln -sfn rustup "$ROOT$PROGRAMS/$name"; done
}

mount_root() {
    mount -t overlay overlay -o "lowerdir=$BASE,upperdir=$RUN/upper,workdir=$RUN/work" "$ROOT" ||
        die "no overlay file system on $DIR: choose another folder with --dir"
    mkdir -p "$ROOT/src" "$ROOT$THEIR_HOME/.cargo"
    mount --bind "$RUN/src" "$ROOT/src"
    mount -t proc proc "$ROOT/proc"
    mount --rbind /sys "$ROOT/sys"
    mount --rbind /dev "$ROOT/dev"
    mount -t tmpfs -o mode=1777 shm "$ROOT/dev/shm"
    show_settings
    show_toolchain
}

# inside: the first process of the namespaces. It waits for the command, and its end is the end of all.
inside() {
    local name
    RUSTUP_HOME=$(rustup show home)
    mount_root
    cd "$ROOT"
    mkdir -p .host
    pivot_root . .host
    # Programs of the host are no longer to be found.
    hash -r
    export PATH=$PROGRAMS:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    umount -l /.host
    rmdir /.host
    for name in $(compgen -e | grep -vE "$PASSED|^PATH\$"); do unset "$name"; done
    export HOME=$THEIR_HOME USER=root CI_INSTALL=1 RUSTUP_HOME
    unset RUSTUP_TOOLCHAIN
    cd "$CLONE"
    "${COMMAND[@]}"
}

if [[ ${1:-} == --inside ]]; then
    DIR=$2 SUITE=$3 BASE=$2/base-$3 RUN=$2/run ROOT=$2/run/root
    shift 3
    COMMAND=("$@")
    inside
    exit
fi

parse_arguments "$@"
[[ $(id -u) -eq 0 ]] || die "ci/empty-root.sh mounts file systems: run it as root"
have debootstrap debootstrap || die "debootstrap is missing"
command -v rustup >/dev/null || die "no rustup: the toolchain that is mounted is rustup's"
need_rust
mkdir -p "$DIR"
DIR=$(cd "$DIR" && pwd)
BASE=$DIR/base-$SUITE RUN=$DIR/run
exec {lock}>"$DIR/lock"
flock -n "$lock" || die "another run uses $DIR: wait for it, or choose another folder with --dir"
make_base
if ((AGAIN == 0)); then make_run; else
    [[ -d $RUN/root ]] || die "no run has left a root file system in $DIR"
fi

say "in $RUN/root, $(du -sh --one-file-system "$BASE" | cut -f1) of ${SUITE}: ${COMMAND[*]}"
code=0
# Each process dies with the one before it: this script, unshare, the first of the namespaces, all others.
setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child \
    "$0" --inside "$DIR" "$SUITE" "${COMMAND[@]}" {lock}>&- || code=$?
if ((code == 0 && KEEP == 0)); then rm -rf --one-file-system "$RUN"; else
    say "left: $RUN/src/${CLONE##*/}/target/ci-logs; to enter it: ci/empty-root.sh --dir $DIR --again bash"
fi
exit "$code"
