#!/usr/bin/env bash
# Installs the programs: tidewater, tidewater-train and tidewater-bench, their man pages, completions for
# bash, zsh and fish, and a modulefile.
#
#   scripts/install.sh PREFIX [PROFILE]    PROFILE: release (default) or ci, which is built here
#
# CARGO_ARGUMENTS adds to the build: --no-default-features leaves out RDMA, which needs cmake and
# libclang. To use them:
#   module use PREFIX/share/modulefiles && module load tidewater      or: export PATH=PREFIX/bin:$PATH
# The client for C, C++ and Fortran: scripts/install-capi.sh, with the same PREFIX.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
installs_into "$@"
read -ra arguments <<<"${CARGO_ARGUMENTS:-}"
cargo build --locked --profile "$PROFILE" -p tidewater-cli -p tidewater-train -p tidewater-bench --bins "${arguments[@]}"

install -d "$PREFIX"/{bin,share/modulefiles/tidewater}
for program in tidewater tidewater-train tidewater-bench; do
    install -m 755 "target/$PROFILE/$program" "$PREFIX/bin/"
    "$PREFIX/bin/$program" __pages "$PREFIX"
done
sed -e "s|@PREFIX@|$PREFIX|g; s|@VERSION@|$VERSION|g" scripts/modulefile.in \
    >"$PREFIX/share/modulefiles/tidewater/$VERSION"
say "tidewater $VERSION is in $PREFIX; module use $PREFIX/share/modulefiles && module load tidewater"
