# The feature `bundled`, from what a registry would have of flashattn-sys: the library that it builds is in the program, and the tests of
# the safe crate pass with it.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/cargo.sh"
unset LD_LIBRARY_PATH FLASHATTN_LIBRARY PKG_CONFIG_PATH
export PKG_CONFIG=false CARGO_TARGET_DIR=$work/rust_bundled

published=$work/published
rm -rf "$published" "$CARGO_TARGET_DIR/package"
mkdir -p "$published"
(cd "$SOURCE/bindings/rust" && cargo package --quiet --locked --no-verify --allow-dirty -p flashattn-sys)
tar -C "$published" -xf "$CARGO_TARGET_DIR"/package/flashattn-sys-*.crate
mv "$published"/flashattn-sys-* "$published/flashattn-sys"
cp -r "$SOURCE"/bindings/rust/{Cargo.toml,Cargo.lock,flashattn} "$published"
cd "$published"
cargo test --quiet --locked --features bundled,half
cargo run --quiet --locked --features bundled,half --example minimal >"$work/rust_bundled.txt"
same_numbers "$work/rust_bundled.txt"
! ldd "$CARGO_TARGET_DIR/debug/examples/minimal" | grep flashattn || { echo "the program needs a shared library of ours"; exit 1; }
