#!/usr/bin/env bash
# Installs what a machine with only rustup and git lacks: a C compiler to link with, what the
# bindings of libibverbs are generated with, the pinned toolchain, the sources of the locked crates.
# After this stage the network is not needed.
source "$(dirname "$0")/lib.sh"

# need_bindings: feature verbs-dlopen builds a C shim with cmake and reads C headers, its own, by
# libclang, whichever version.
need_bindings() {
    local missing=()
    command -v cmake >/dev/null || missing+=(cmake)
    libclang >/dev/null || missing+=("$(libclang_package)")
    ((${#missing[@]} == 0)) || apt_install "${missing[@]}" || die "feature verbs-dlopen needs cmake and libclang"
}

# want_rdma_core: feature verbs links libibverbs. ci/verbs.sh says so where it cannot be built.
want_rdma_core() {
    can_link_verbs || apt_install pkg-config libibverbs-dev librdmacm-dev || true
}

# libclang_package: version 14 where there is one, for the feature verbs.
libclang_package() {
    if apt-cache show libclang-14-dev >/dev/null 2>&1; then say libclang-14-dev; else say libclang-dev; fi
}

need_cc
need_bindings
want_rdma_core
need_rust
cargo fetch --locked
note "$(rustc --version | cut -d' ' -f1,2), $(nproc) cores"
