//! Names the shared library, so that a program finds the release it was linked with.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtidewater.so.0");
}
