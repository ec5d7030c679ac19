#!/usr/bin/env bash
# Builds the library and its tests for 64-bit ARM, warnings as errors, and runs them on an emulated CPU: NEON alone, and SVE with vectors
# of 128, 256 and 512 bits. The last lines are ctest's own summary.
#   test_aarch64.sh          what every change must pass
#   test_aarch64.sh --full   everything that runs there: an hour
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1-}" in
    "") targets=(fa_check api_test abi_test abi_layout abi_c99) tests=(--label-regex quick) ;;
    --full) targets=(all) tests=() ;;
    *) sed -n '2,5s/^# *//p' "$0"; exit 2 ;;
esac

tools/install_packages.sh g++-aarch64-linux-gnu qemu-user googletest cmake ninja-build
printf '\n== Building aarch64\n'
cmake --preset aarch64 -DFA_TESTS=ON -DFA_WERROR=ON --log-level=WARNING >/dev/null
cmake --build --preset aarch64 --target "${targets[@]}" -- --quiet
printf '\n== Testing aarch64\n'
export OMP_WAIT_POLICY=passive CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL-$(nproc)}
ctest --preset aarch64 --progress --no-tests=error "${tests[@]}"
