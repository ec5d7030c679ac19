//! Finds the installed library through pkg-config: this crate's own version or a later one with the same SONAME, which has the major
//! version in its name. FLASHATTN_STATIC=1 links the static one. The feature `bundled` builds the library instead.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // docs.rs builds the documentation, which links nothing, where no library is.
    if env::var_os("DOCS_RS").is_some() {
        return;
    }
    let spread = env::var_os("CARGO_FEATURE_CP").is_some();
    if env::var_os("CARGO_FEATURE_BUNDLED").is_some() {
        assert!(!spread, "the feature `bundled` builds no libflashattn-cp, which `cp` needs: install the library, and leave `bundled` out");
        build();
    } else {
        find(spread);
    }
}

fn find(spread: bool) {
    for variable in ["FLASHATTN_STATIC", "PKG_CONFIG", "PKG_CONFIG_PATH"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let is_static = env::var("FLASHATTN_STATIC").map_or(false, |value| value == "1");
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let mut command = Command::new(&program);
    if is_static {
        command.arg("--static");
    }
    let major: u32 = env!("CARGO_PKG_VERSION_MAJOR").parse().expect("a number");
    command.args(["--libs", concat!("flashattn >= ", env!("CARGO_PKG_VERSION")), &format!("flashattn < {}", major + 1)]);

    if spread {
        assert!(!is_static, "libflashattn-cp has the shared libflashattn: leave FLASHATTN_STATIC out with the feature `cp`");
        command.arg(concat!("flashattn-cp >= ", env!("CARGO_PKG_VERSION")));
    }

    let output = command.output().unwrap_or_else(|error| panic!("cannot run {program}: {error}"));
    assert!(
        output.status.success(),
        "{program} does not find a flashattn that fits (is PKG_CONFIG_PATH set? The feature `bundled` builds one): {}",
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

/// The static library, optimised whatever the profile is, with the threads of its own pool.
fn build() {
    let source = Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("library");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("library");
    println!("cargo:rerun-if-changed=library");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&source).arg("-B").arg(&out);
    configure.args(["-DCMAKE_BUILD_TYPE=Release", "-DFA_TESTS=OFF", "-DFA_CLI=OFF", "-DFA_OPENMP=OFF", "-DFA_CP=OFF"]);
    run(&mut configure);
    let jobs = env::var("NUM_JOBS").unwrap_or_else(|_| "1".into());
    run(Command::new("cmake").arg("--build").arg(&out).args(["--target", "flashattn_static", "--parallel", &jobs]));
    println!("cargo:rustc-link-search=native={}", out.join("src").display());
    println!("cargo:rustc-link-lib=static=flashattn");
    for library in ["m", "dl", "pthread"] {
        println!("cargo:rustc-link-lib={library}");
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(status.success(), "{command:?} failed");
}
