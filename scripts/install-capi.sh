#!/usr/bin/env bash
# Installs the client for C, C++ and Fortran: headers, libtidewater.so and .a, the source of the
# Fortran module, and the file that pkg-config reads.
#
#   scripts/install-capi.sh PREFIX [PROFILE]    PROFILE: release (default) or ci, which is built here
#
# CARGO_ARGUMENTS adds to the build: --no-default-features leaves out RDMA, which needs cmake and
# libclang. To compile:
#   export PKG_CONFIG_PATH=PREFIX/lib/pkgconfig
#   cc program.c $(pkg-config --cflags --libs tidewater)
#   gfortran PREFIX/share/tidewater/tidewater.f90 program.f90 $(pkg-config --libs tidewater)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
installs_into "$@"
ABI=0 # as in client/capi/build.rs
BUILT=target/$PROFILE

read -ra arguments <<<"${CARGO_ARGUMENTS:-}"
cargo build --locked --profile "$PROFILE" -p tidewater-capi --lib "${arguments[@]}"

# What the static library needs of the system; the shared one knows it by itself.
libs="-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc"

install -d "$PREFIX"/{include,lib/pkgconfig,share/tidewater}
install -m 644 client/capi/include/* "$PREFIX/include/"
install -m 644 client/capi/fortran/tidewater.f90 "$PREFIX/share/tidewater/"
install -m 755 "$BUILT/libtidewater_capi.so" "$PREFIX/lib/libtidewater.so.$VERSION"
ln -sf "libtidewater.so.$VERSION" "$PREFIX/lib/libtidewater.so.$ABI"
ln -sf "libtidewater.so.$ABI" "$PREFIX/lib/libtidewater.so"
install -m 644 "$BUILT/libtidewater_capi.a" "$PREFIX/lib/libtidewater.a"
sed -e "s|@PREFIX@|$PREFIX|; s|@VERSION@|$VERSION|; s|@LIBS_PRIVATE@|$libs|" \
    client/capi/tidewater.pc.in >"$PREFIX/lib/pkgconfig/tidewater.pc"
say "libtidewater $VERSION is in $PREFIX; export PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig"
