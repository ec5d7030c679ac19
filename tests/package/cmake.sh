# find_package(flashattn) serves the examples, which are a project of their own, with the shared and with the static library.
. "$(dirname "$0")/common.sh"

cmake=$1 generator=$2
# Even in a project that has C++, the C programs are linked as C.
echo "enable_language(CXX)" >"$scratch/cxx.cmake"
"$cmake" -G "$generator" -S "$SOURCE/examples" -B "$scratch/build" -DCMAKE_PREFIX_PATH="$PREFIX" \
    -DCMAKE_PROJECT_INCLUDE="$scratch/cxx.cmake" -DCMAKE_EXE_LINKER_FLAGS=-Wl,--no-as-needed >"$scratch/log" 2>&1 ||
    { cat "$scratch/log"; fail "configure"; }
"$cmake" --build "$scratch/build" >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "build"; }
for kind in "" _static; do
    expect_minimal "$scratch/build/minimal$kind"
    expect_solution "$scratch/build/solve$kind"
done
needs "$scratch/build/minimal" | grep -qx libflashattn.so.0 || fail "the shared example does not use the shared library"
for library in libflashattn libstdc++; do
    ! needs "$scratch/build/minimal_static" | grep -qF "$library" || fail "the static example asks for $library"
done
