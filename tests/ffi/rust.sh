# Tests the crates (documentation included) with the shared and the static library, looks at what would be published, and runs the example
# as a program that asks for that.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/cargo.sh"
cd "$SOURCE/bindings/rust"
features=half
! pkg-config --exists flashattn-cp || features=half,cp  # a build without FA_CP has none
cargo test --quiet --locked --features $features
FLASHATTN_STATIC=1 cargo test --quiet --locked --features half --test calls
# Only the compiler's own clippy reads what it has compiled: 0.1.95 is that of 1.95.
clippy=$(cargo clippy --version 2>&1 || true)
[[ "$clippy " == "clippy 0.$(rustc --version | grep -oE '1\.[0-9]+' | head -1) "* ]] ||
    { echo "$(rustc --version) has no clippy of its own (Debian's is in rust-clippy): $clippy"; exit 1; }
cargo clippy --quiet --locked --features $features --all-targets -- -D warnings

# docs.rs has no library, and documents every feature; a published crate brings along all that the feature `bundled` configures, which
# rust_bundled.sh builds.
DOCS_RS=1 PKG_CONFIG=false cargo doc --quiet --locked --no-deps --all-features --target-dir "$work/docs"
rm -rf "$CARGO_TARGET_DIR"/package "$work/published"
mkdir "$work/published"
crates=flashattn-sys lock=--locked safe=$PWD/flashattn
if cargo package --help | grep -q -e --exclude-lockfile; then  # else a crate that needs another has to find it in the registry
    crates="flashattn-sys flashattn" lock=--exclude-lockfile safe=$work/published/flashattn
fi
for crate in $crates; do
    cargo package --quiet $lock --no-verify --allow-dirty -p $crate
    tar -C "$work/published" -xf "$CARGO_TARGET_DIR"/package/$crate-[0-9]*.crate
    mv "$work/published/$crate"-[0-9]* "$work/published/$crate"
    for file in README.md LICENSE; do [ -e "$work/published/$crate/$file" ] || { echo "the crate $crate lacks $file"; exit 1; }; done
done
cmake -S "$work/published/flashattn-sys/library" -B "$work/published/bundled" -DCMAKE_BUILD_TYPE=Release -DFA_TESTS=OFF -DFA_CLI=OFF \
    -DFA_OPENMP=OFF -DFA_CP=OFF >"$work/bundled.log" 2>&1 || { cat "$work/bundled.log"; exit 1; }

# A crate of its own, which asks for the crates as they would be published.
newcomer=$work/newcomer_rust
mkdir -p "$newcomer/src"
cp flashattn/examples/minimal.rs "$newcomer/src/main.rs"
cat >"$newcomer/Cargo.toml" <<END
[package]
name = "newcomer"
version = "0.0.0"
edition = "2021"
[dependencies]
flashattn = "$(sed -n 's/^version = "\(.*\)"/\1/p' flashattn/Cargo.toml)"
[patch.crates-io]
flashattn = { path = "$safe" }
flashattn-sys = { path = "$work/published/flashattn-sys" }
END
(cd "$newcomer" && cargo run --quiet >"$work/rust.txt")
same_numbers "$work/rust.txt"

# What the registry itself looks at, where there is one and cargo can ask it about crates that need each other.
if [ -z "${CARGO_NET_OFFLINE-}" ] && cargo publish --help | grep -q -e --workspace; then
    DOCS_RS=1 cargo publish --quiet --locked --workspace --dry-run --allow-dirty
fi
