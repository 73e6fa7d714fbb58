#!/usr/bin/env bash
# Builds the wheel for Python with the programs tidewater and tidewater-train in it: `pip install` of it is
# the whole installation.
#
#   scripts/build-wheel.sh FOLDER [PROFILE]    PROFILE: release (default) or ci, which is built here
#
# Its tag names the glibc of this host that it needs. MANYLINUX=2_28 builds it for hosts with glibc 2.28 and
# later instead; then zig links, which pip brings. MATURIN names a maturin that is installed; without, pip
# brings one into target/tools/python. CARGO_ARGUMENTS adds to the build of the programs.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
installs_into "$@"
PROGRAMS=(tidewater tidewater-train)
TOOLS=$REPO_ROOT/target/tools/python
TARGET=${CARGO_TARGET_DIR:-$REPO_ROOT/target}
DATA=$REPO_ROOT/client/python/tidewater.data # maturin's name for what a wheel installs outside of the package
MISSING=77 # exit code: pip could not bring the tools

# tools PACKAGE...: installs them where they are missing.
tools() {
    [[ -x $TOOLS/bin/pip ]] || { rm -rf "$TOOLS" && python3 -m venv "$TOOLS"; } || exit "$MISSING"
    "$TOOLS/bin/pip" install --quiet "$@" || exit "$MISSING"
    export PATH=$TOOLS/bin:$PATH
}

read -ra arguments <<<"${CARGO_ARGUMENTS:-}"
wheel=()
if [[ -n ${MANYLINUX:-} ]]; then
    tools 'maturin>=1.7,<2' 'cargo-zigbuild<1' ziglang
    triple=$(rustc -vV | sed -n 's/^host: //p')
    build=(cargo zigbuild --target "$triple.${MANYLINUX/_/.}")
    wheel=(--zig --target "$triple" --compatibility "manylinux_$MANYLINUX")
    BUILT=$TARGET/$triple/$PROFILE
else
    [[ -n ${MATURIN:-} || -x $TOOLS/bin/maturin ]] || tools 'maturin>=1.7,<2'
    build=(cargo build)
    BUILT=$TARGET/$PROFILE
fi
export PATH=$TOOLS/bin:$PATH
"${build[@]}" --locked --profile "$PROFILE" -p tidewater-cli -p tidewater-train --bins "${arguments[@]}"

trap 'rm -rf -- "$DATA"' EXIT
rm -rf "$DATA"
install -d "$DATA/scripts"
for program in "${PROGRAMS[@]}"; do
    strip -o "$DATA/scripts/$program" "$BUILT/$program"
    chmod 755 "$DATA/scripts/$program"
    say "$program: $(stat -c %s "$DATA/scripts/$program") bytes, needs glibc $(objdump -T "$DATA/scripts/$program" |
        grep -v ' w ' | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -V | tail -n 1)"
done
CARGO_TARGET_DIR=$TARGET "${MATURIN:-maturin}" build --quiet --locked --profile "$PROFILE" "${wheel[@]}" \
    --manifest-path client/python/Cargo.toml --out "$PREFIX"
for file in "$PREFIX"/tidewater-"$VERSION"-*.whl; do
    say "$(stat -c %s "$file") bytes: $file"
done
