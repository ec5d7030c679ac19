#!/usr/bin/env bash
# All tests: installs what is missing, builds with warnings as errors, tests under the address and undefined-behaviour sanitizers,
# then the optimised build.
#   test.sh          what every change must pass
#   test.sh --full   also an unoptimised build and the thread sanitizer
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1-}" in
    "") presets=(asan release) ;;
    --full) presets=(dev asan tsan release) ;;
    *) sed -n '2,5s/^# *//p' "$0"; exit 2 ;;
esac

packages=(g++ cmake ninja-build pkg-config libgtest-dev libcli11-dev nlohmann-json3-dev python3-numpy cargo rustc golang-go)
[ "${1-}" != --full ] || packages+=(clang-14 libomp-14-dev)
tools/install_packages.sh "${packages[@]}"

# Tests run side by side: threads that wait must not spin.
export OMP_WAIT_POLICY=passive CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL-$(nproc)}
for preset in "${presets[@]}"; do
    printf '\n== Building %s\n' "$preset"
    cmake --preset "$preset" -DFA_TESTS=ON -DFA_WERROR=ON --log-level=WARNING
    cmake --build --preset "$preset" -- --quiet
    printf '\n== Testing %s\n' "$preset"
    ctest --preset "$preset" --progress
done
