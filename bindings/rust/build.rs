//! Finds the installed library through pkg-config: this crate's own version or a later one with the same SONAME, which has the major
//! version in its name. FLASHATTN_STATIC=1 links the static one.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=FLASHATTN_STATIC");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");

    let is_static = env::var("FLASHATTN_STATIC").map_or(false, |value| value == "1");
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let mut command = Command::new(&program);
    if is_static {
        command.arg("--static");
    }
    let major: u32 = env!("CARGO_PKG_VERSION_MAJOR").parse().expect("a number");
    command.args(["--libs", concat!("flashattn >= ", env!("CARGO_PKG_VERSION")), &format!("flashattn < {}", major + 1)]);

    let output = command.output().unwrap_or_else(|error| panic!("cannot run {program}: {error}"));
    assert!(
        output.status.success(),
        "{program} does not find a flashattn that fits (is PKG_CONFIG_PATH set?): {}",
        String::from_utf8_lossy(&output.stderr)
    );
    for flag in String::from_utf8_lossy(&output.stdout).split_whitespace() {
        if let Some(folder) = flag.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={folder}");
        } else if let Some(library) = flag.strip_prefix("-l") {
            let kind = if is_static && library == "flashattn" { "static=" } else { "" };
            println!("cargo:rustc-link-lib={kind}{library}");
        }
    }
}
