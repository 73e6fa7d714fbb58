# shellcheck shell=bash
# What quickstart, CI and the examples share: messages, the toolchain, scratch folders.
# Source it from a bash script that has set -euo pipefail; it changes nothing until called.

# The repository's root, wherever the script was called from.
REPO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*"; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# may_install: whether installing was asked for (CI_INSTALL=1) and is possible here: Debian, as root.
may_install() {
    [[ ${CI_INSTALL:-} == 1 && $(id -u) -eq 0 ]] && command -v apt-get >/dev/null
}

# apt_update_once: apt's lists, where it has none.
apt_update_once() {
    [[ -n $(find /var/lib/apt/lists -name '*_Packages*' -print -quit 2>/dev/null) ]] || apt-get update -qq
}

# boot_links: what starts services at boot, by systemd or by init scripts.
boot_links() {
    find /etc/systemd/system /etc/rc?.d -type l 2>/dev/null | sort
}

# install_quietly PACKAGE...: installs. No service of theirs is started or enabled for the next boot.
install_quietly() (
    export DEBIAN_FRONTEND=noninteractive
    policy=/usr/sbin/policy-rc.d
    links=$(boot_links)
    if [[ ! -e $policy ]]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
    fi
    code=0
    apt-get install -qq -y --no-install-recommends "$@" >/dev/null 2>&1 ||
        { apt-get update -qq && apt-get install -qq -y --no-install-recommends "$@" >/dev/null; } || code=$?
    comm -13 <(say "$links") <(boot_links) | while IFS= read -r link; do
        rm -f "$link"
        say "not enabled at boot: ${link##*/}"
    done
    exit "$code"
)

# apt_install PACKAGE...: installs them if CI_INSTALL=1 asks for it, on Debian as root; otherwise says what to type and
# fails.
apt_install() {
    if ! may_install; then
        warn "missing: $*. CI_INSTALL=1 installs them (Debian, as root), or type: apt-get install -y --no-install-recommends $*"
        return 1
    fi
    say "installing $* (apt-get, for CI_INSTALL=1)"
    install_quietly "$@"
}

# have PROGRAM PACKAGE...: whether the program is here, or its packages could be installed.
have() {
    local program=$1
    shift
    command -v "$program" >/dev/null || apt_install "$@"
}

# installs_into PREFIX [PROFILE]: what the install scripts begin with: sets PREFIX (absolute, made if it is
# not there), PROFILE and VERSION, and goes to the root; without a prefix, prints the script's head.
# shellcheck disable=SC2034  # they are the scripts'
installs_into() {
    local head='2,/^set/s/^# \{0,1\}//p'
    [[ -n ${1:-} && $1 != -* ]] || { sed -n "$head" "$0" | sed '/^set/d'; exit 2; }
    mkdir -p "$1"
    PREFIX=$(cd "$1" && pwd)
    PROFILE=${2:-release}
    cd "$REPO_ROOT" || exit
    find_cargo
    VERSION=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
    [[ -n $VERSION ]] || die "no version in Cargo.toml"
}

# need_cc: rustc links with the system's C compiler.
need_cc() {
    command -v cc >/dev/null || apt_install gcc libc6-dev || die "rustc needs cc to link"
}

# find_cargo: a shell that was open when rustup was installed does not know its folder yet.
find_cargo() {
    local bin=${CARGO_HOME:-${HOME:-}/.cargo}/bin
    command -v cargo >/dev/null || [[ ! -x $bin/cargo ]] || export PATH=$bin:$PATH
}

# need_rust: the toolchain that rust-toolchain.toml pins, with clippy and rustfmt.
need_rust() {
    find_cargo
    command -v cargo >/dev/null || die "no cargo: install rustup from https://rustup.rs"
    (cd "$REPO_ROOT" && cargo --version && cargo clippy --version && cargo fmt --version) \
        >/dev/null 2>&1 && return 0
    command -v rustup >/dev/null || die "the pinned toolchain needs rustup: https://rustup.rs"
    # Without a name, rustup installs what rust-toolchain.toml asks for (since 1.28).
    (cd "$REPO_ROOT" && rustup toolchain install) || die "rustup could not install the toolchain"
}

# no_color_unless_terminal: escape codes are noise in a log.
no_color_unless_terminal() {
    [[ -t 1 ]] || export CARGO_TERM_COLOR=never
}

# scratch_dir: sets SCRATCH to a new folder that is removed when the calling script exits.
scratch_dir() {
    SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/tidewater.XXXXXXXX")
    trap 'rm -rf -- "$SCRATCH"' EXIT
}
