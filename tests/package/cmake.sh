# find_package(flashattn) serves the examples, which are a project of their own, with the shared and with the static library.
. "$(dirname "$0")/common.sh"

cmake=$1 generator=$2
"$cmake" -G "$generator" -S "$SOURCE/examples" -B "$scratch/build" -DCMAKE_PREFIX_PATH="$PREFIX" >"$scratch/log" 2>&1 ||
    { cat "$scratch/log"; fail "configure"; }
"$cmake" --build "$scratch/build" >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "build"; }
for kind in "" _static; do
    expect_minimal "$scratch/build/minimal$kind"
    expect_solution "$scratch/build/solve$kind"
done
needs "$scratch/build/minimal" | grep -qx libflashattn.so.0 || fail "the shared example does not use the shared library"
! needs "$scratch/build/minimal_static" | grep -qF libflashattn || fail "the static example asks for libflashattn"
