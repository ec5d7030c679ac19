# Where the library cannot be built, configuring ends with one sentence, and nothing is compiled.
. "$(dirname "$0")/common.sh"

cmake=$1 generator=$2 cxx=$3
# expect_refusal SENTENCE: with the toolchain file on standard input.
expect_refusal() {
    cat >"$scratch/toolchain.cmake"
    rm -rf "$scratch/build"
    ! "$cmake" -G "$generator" -S "$SOURCE" -B "$scratch/build" -DCMAKE_TOOLCHAIN_FILE="$scratch/toolchain.cmake" >"$scratch/log" 2>&1 ||
        fail "configures where $1"
    [ "$(grep -c '^CMake Error' "$scratch/log")" = 1 ] || { cat "$scratch/log"; fail "not one error where $1"; }
    tr -s ' \n' ' ' <"$scratch/log" | grep -qF "$1" || { cat "$scratch/log"; fail "no sentence: $1"; }
}
expected="64-bit Linux, FreeBSD, macOS or Windows, GCC or Clang"
for system in CYGWIN MSYS OpenBSD NetBSD DragonFly SunOS AIX Haiku GNU Emscripten WASI Generic; do
    expect_refusal "CMAKE_SYSTEM_NAME is \"$system\": expected $expected" <<<"set(CMAKE_SYSTEM_NAME $system)"
done

# A compiler for another system, of which nothing but its macros tells.
printf '#!/bin/sh\nexec "%s" -U__linux__ "$@"\n' "$cxx" >"$scratch/other"
chmod +x "$scratch/other"
expect_refusal "CMAKE_CXX_COMPILER is \"$scratch/other\": expected $expected" <<<"set(CMAKE_CXX_COMPILER $scratch/other)"

# Compiled, and not linked: nothing of a system of 32 bits is installed.
if "$CC" -m32 -c -x c /dev/null -o /dev/null 2>/dev/null; then
    expect_refusal "CMAKE_SIZEOF_VOID_P is \"4\": expected 8, $expected" <<'CMAKE'
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_C_FLAGS_INIT -m32)
set(CMAKE_CXX_FLAGS_INIT -m32)
CMAKE
fi
