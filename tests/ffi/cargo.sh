# Sourced by the tests of the crates: cargo with folders of its own.
skip_without cargo rustc

# From Debian's packages where they have the one crate that is needed, else from the registry.
export CARGO_HOME=$work/cargo_$(basename "$0" .sh) CARGO_TARGET_DIR=$work/rust RUSTFLAGS="-D warnings" RUSTDOCFLAGS="-D warnings"
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0  # these programs are built once, and nobody looks into them
[ ! -d "$HOME/.rustup" ] || export RUSTUP_HOME=${RUSTUP_HOME-$HOME/.rustup}
mkdir -p "$CARGO_HOME"
rm -f "$CARGO_HOME/config.toml"
if compgen -G '/usr/share/cargo/registry/half-*' >/dev/null; then
    export CARGO_NET_OFFLINE=true
    printf '[source.crates-io]\nreplace-with = "debian"\n[source.debian]\ndirectory = "/usr/share/cargo/registry"\n' >"$CARGO_HOME/config.toml"
fi
(cd "$SOURCE/bindings/rust" && cargo fetch --quiet --locked) || { echo "skipped: neither librust-half-dev nor the registry is here"; exit 77; }
