# Tests the crates (documentation included) with the shared and the static library, runs the example, and looks at what would be published.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/cargo.sh"
cd "$SOURCE/bindings/rust"
features=half
! pkg-config --exists flashattn-cp || features=half,cp  # a build without FA_CP has none
cargo test --quiet --locked --features $features
FLASHATTN_STATIC=1 cargo test --quiet --locked --features half --test calls
cargo run --quiet --locked --features half --example minimal >"$work/rust.txt"
same_numbers "$work/rust.txt"
# Only the compiler's own clippy reads what it has compiled: 0.1.95 is that of 1.95.
clippy=$(cargo clippy --version 2>&1 || true)
[[ "$clippy" == "clippy 0.$(rustc --version | grep -oE '1\.[0-9]+' | head -1) "* ]] ||
    { echo "$(rustc --version) has no clippy of its own (Debian's is in rust-clippy): $clippy"; exit 1; }
cargo clippy --quiet --locked --features $features --all-targets -- -D warnings

# docs.rs has no library, and documents every feature; a published crate brings along all that the feature `bundled` configures, which
# rust_bundled.sh builds.
DOCS_RS=1 PKG_CONFIG=false cargo doc --quiet --locked --no-deps --all-features --target-dir "$work/docs"
for crate in flashattn-sys flashattn; do
    cargo package --list --allow-dirty --quiet -p $crate >"$work/$crate.files"
    for file in README.md LICENSE; do grep -qx $file "$work/$crate.files" || { echo "the crate $crate lacks $file"; exit 1; }; done
done
rm -rf "$CARGO_TARGET_DIR"/package
cargo package --quiet --locked --no-verify --allow-dirty -p flashattn-sys
tar -C "$CARGO_TARGET_DIR/package" -xf "$CARGO_TARGET_DIR"/package/flashattn-sys-*.crate
cmake -S "$CARGO_TARGET_DIR"/package/flashattn-sys-*/library -B "$work/bundled" -DCMAKE_BUILD_TYPE=Release -DFA_TESTS=OFF -DFA_CLI=OFF \
    -DFA_OPENMP=OFF -DFA_CP=OFF >"$work/bundled.log" 2>&1 || { cat "$work/bundled.log"; exit 1; }

# What the registry itself looks at, where there is one and cargo can ask it about crates that need each other.
if [ -z "${CARGO_NET_OFFLINE-}" ] && cargo publish --help | grep -q -e --workspace; then
    DOCS_RS=1 cargo publish --quiet --locked --workspace --dry-run --allow-dirty
fi
