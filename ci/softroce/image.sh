#!/usr/bin/env bash
# Makes what a Soft-RoCE guest boots from: Debian's stock kernel, unpacked and not installed, and an
# initramfs of busybox, the modules below and ci/softroce/init. Needs the packages of stage softroce in
# ci/packages.tsv. At once when all is there.
#
# TIDEWATER_SOFTROCE_DIR: where; otherwise target/softroce of the checkout.
source "$(dirname "$0")/lib.sh"
source ci/lib/packages.sh
INIT=ci/softroce/init
LOCK_WAIT_S=600

# What the guest needs, in the order of loading. Without crc32_generic rxe has no checksum for its
# packets: `rdma link add` fails with ENOENT.
MODULES=(virtio_pci virtio_net virtio_console 9p 9pnet_virtio overlay crc32_generic rdma_rxe
    ib_uverbs sch_netem dummy)
APPLETS=(sh mount insmod mkdir cat echo ln sleep chroot)

# kernel_package: the package that linux-image-amd64 stands for today.
kernel_package() {
    apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image-/ { print $2; exit }'
}

# fetch_kernel FOLDER: the kernel's package, unpacked there. The package manager knows from where.
fetch_kernel() {
    local package
    package=$(kernel_package)
    if [[ -z $package ]]; then
        may_install || die "apt knows no package linux-image-amd64: type apt-get update as root, or set CI_INSTALL=1"
        apt-get update -qq || die "apt-get update failed: the guest's kernel comes from Debian"
        package=$(kernel_package)
    fi
    [[ -n $package ]] || die "no package linux-image-amd64 known to apt"
    (cd "$1" && apt-get download -qq "$package" 2>/dev/null) || die "cannot download $package"
    dpkg -x "$1"/linux-image-*.deb "$1/unpacked"
}

# unpack_kernel VMLINUZ: the kernel as QEMU can enter it directly, where it is packed with xz: to
# unpack it under emulation takes longer than all the rest of the boot.
unpack_kernel() {
    local at
    at=$(grep -obUaP '\xfd7zXZ\x00' "$1" | head -n 1 | cut -d: -f1) || true
    # What follows the packed kernel is not read: tail may end by SIGPIPE, which is no failure.
    if [[ -n $at ]] &&
        xz -dc --single-stream < <(tail -c "+$((at + 1))" "$1") >"$SCRATCH/vmlinux"; then
        mv "$SCRATCH/vmlinux" "$SOFTROCE_DIR/kernel"
    else
        cp "$1" "$SOFTROCE_DIR/kernel"
    fi
}

# take_kernel: the kernel and the modules that are needed; the other 400 MB go.
take_kernel() {
    local unpacked=$SCRATCH/unpacked version module path options
    fetch_kernel "$SCRATCH"
    version=$(ls "$unpacked/lib/modules")
    depmod -b "$unpacked" "$version"
    mkdir -p "$SCRATCH/modules"
    for module in "${MODULES[@]}"; do
        modprobe -d "$unpacked" -S "$version" --show-depends "$module" || die "no module $module in $version"
    done | awk '$1 == "insmod" && !seen[$2]++ { $1 = ""; print }' >"$SCRATCH/list"
    while read -r path options; do
        cp "$path" "$SCRATCH/modules/"
        say "$(basename "$path") $options"
    done <"$SCRATCH/list" >"$SCRATCH/modules/order"
    rm -rf "$SOFTROCE_DIR/modules"
    mv "$SCRATCH/modules" "$SOFTROCE_DIR/"
    unpack_kernel "$unpacked/boot/vmlinuz-$version"
    say "$version ${MODULES[*]}" >"$SOFTROCE_DIR/version" # last: it says that the rest is there
}

make_initramfs() {
    local root=$SCRATCH/root applet
    mkdir -p "$root"/{bin,proc,sys,dev,host,out,rw,new}
    cp "$(command -v busybox)" "$root/bin/"
    for applet in "${APPLETS[@]}"; do ln -s busybox "$root/bin/$applet"; done
    cp -r "$SOFTROCE_DIR/modules" "$root/"
    cp "$INIT" "$root/init"
    chmod +x "$root/init"
    (cd "$root" && find . | cpio -o --quiet -H newc | gzip -1) >"$SCRATCH/initrd.img"
    mv "$SCRATCH/initrd.img" "$SOFTROCE_DIR/initrd.img"
}

have_kernel() {
    local modules
    read -r _ modules 2>/dev/null <"$SOFTROCE_DIR/version" && [[ $modules == "${MODULES[*]}" ]]
}

mkdir -p "$SOFTROCE_DIR"
exec {lock}>"$SOFTROCE_DIR/lock"
flock -w "$LOCK_WAIT_S" "$lock" || die "another image.sh works in $SOFTROCE_DIR"
TMPDIR=$SOFTROCE_DIR scratch_dir # on its file system: who boots meanwhile gets the old file or the new
need_packages softroce
have_kernel || take_kernel
[[ $SOFTROCE_DIR/initrd.img -nt $INIT && $SOFTROCE_DIR/initrd.img -nt $SOFTROCE_DIR/version ]] || make_initramfs
