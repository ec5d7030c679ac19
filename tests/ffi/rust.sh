# Builds the crate offline, runs its tests (documentation included) and its example.
. "$(dirname "$0")/common.sh"
skip_without cargo rustc

export CARGO_TARGET_DIR=$work/rust CARGO_NET_OFFLINE=true RUSTFLAGS="-D warnings"
cd "$SOURCE/bindings/rust"
cargo test --quiet --locked
FLASHATTN_STATIC=1 cargo test --quiet --locked --test wrapper
cargo run --quiet --locked --example minimal >"$work/rust.txt"
same_numbers "$work/rust.txt"
