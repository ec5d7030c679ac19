# Tests the crates (documentation included) with the shared and the static library, runs the example, and looks at what would be published.
. "$(dirname "$0")/common.sh"
skip_without cargo rustc

# From Debian's packages where they have the one crate that is needed, else from the registry.
export CARGO_HOME=$work/cargo CARGO_TARGET_DIR=$work/rust RUSTFLAGS="-D warnings" RUSTDOCFLAGS="-D warnings"
[ ! -d "$HOME/.rustup" ] || export RUSTUP_HOME=${RUSTUP_HOME-$HOME/.rustup}
mkdir -p "$CARGO_HOME"
rm -f "$CARGO_HOME/config.toml"
if compgen -G '/usr/share/cargo/registry/half-*' >/dev/null; then
    export CARGO_NET_OFFLINE=true
    printf '[source.crates-io]\nreplace-with = "debian"\n[source.debian]\ndirectory = "/usr/share/cargo/registry"\n' >"$CARGO_HOME/config.toml"
fi
cd "$SOURCE/bindings/rust"
cargo fetch --quiet --locked || { echo "skipped: neither librust-half-dev nor the registry is here"; exit 77; }
cargo test --quiet --locked --features half
FLASHATTN_STATIC=1 cargo test --quiet --locked --features half --test calls
cargo run --quiet --locked --features half --example minimal >"$work/rust.txt"
same_numbers "$work/rust.txt"
# Only the compiler's own clippy reads what it has compiled: 0.1.95 is that of 1.95.
if [[ "$(cargo clippy --version 2>/dev/null)" == "clippy 0.$(rustc --version | grep -oE '1\.[0-9]+' | head -1)."* ]]; then
    cargo clippy --quiet --locked --features half --all-targets -- -D warnings
fi

# docs.rs has no library; and a published crate brings along all that the feature `bundled` configures.
DOCS_RS=1 PKG_CONFIG=false cargo doc --quiet --locked --no-deps --target-dir "$work/docs"
for crate in flashattn-sys flashattn; do
    cargo package --list --allow-dirty --quiet -p $crate >"$work/$crate.files"
    grep -qx README.md "$work/$crate.files"
done
rm -rf "$CARGO_TARGET_DIR"/package
cargo package --quiet --locked --no-verify --allow-dirty -p flashattn-sys
tar -C "$CARGO_TARGET_DIR/package" -xf "$CARGO_TARGET_DIR"/package/flashattn-sys-*.crate
cmake -S "$CARGO_TARGET_DIR"/package/flashattn-sys-*/library -B "$work/bundled" -DCMAKE_BUILD_TYPE=Release -DFA_TESTS=OFF -DFA_CLI=OFF \
    -DFA_OPENMP=OFF -DFA_CP=OFF >"$work/bundled.log" 2>&1 || { cat "$work/bundled.log"; exit 1; }
