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

packages=(g++ cmake ninja-build pkg-config libgtest-dev libcli11-dev nlohmann-json3-dev python3-numpy python3-venv mandoc
    cargo rustc golang-go)
[ "${1-}" != --full ] || packages+=(clang libomp-14-dev)
tools/install_packages.sh "${packages[@]}"

# Debian has NumPy, but not its bfloat16 and 8-bit floats.
venv=$PWD/build/venv
if ! "$venv/bin/python" -c "import ml_dtypes" 2>/dev/null; then
    echo "== Installing ml_dtypes (build/venv)"
    /usr/bin/python3 -m venv --clear --system-site-packages "$venv"
    "$venv/bin/pip" install --quiet --no-deps --only-binary :all: ml_dtypes==0.4.1
fi

# Tests run side by side: threads that wait must not spin.
export OMP_WAIT_POLICY=passive CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL-$(nproc)}
for preset in "${presets[@]}"; do
    printf '\n== Building %s\n' "$preset"
    cmake --preset "$preset" -DFA_TESTS=ON -DFA_WERROR=ON -DFA_PYTHON="$venv/bin/python" --log-level=WARNING >/dev/null
    cmake --build --preset "$preset" -- --quiet
    printf '\n== Testing %s\n' "$preset"
    ctest --preset "$preset" --progress
done
