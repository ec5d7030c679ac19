#!/usr/bin/env bash
# Builds the library and its tests for another machine, warnings as errors, and runs them on an emulated CPU: aarch64 (NEON alone, and SVE
# with vectors of 128, 256 and 512 bits), s390x (high byte first). The last lines are ctest's own summary.
#   test_cross.sh MACHINE          what every change must pass
#   test_cross.sh --full MACHINE   everything that runs there, but for sums over thousands of keys: an hour and a half
set -euo pipefail
cd "$(dirname "$0")/.."

targets=(fa_check abi_test abi_layout abi_c99) tests=(--label-regex quick)
# What the quick tests of a machine name: files of tests/check, and no kernels for vectors of these lengths. The others' text is tested: how
# far a compiler optimises it counts for --full.
options=(-DFA_CHECK_FILES='accuracy|count|hostile|native|random' -DFA_UNOPTIMISED_ISAS="sve128;sve512;sve512_bf16" -DFA_KERNEL_OPTIMISATION=-O1)
[ "${1-}" != --full ] || {
    # Left out are sums over thousands of keys, which take a quarter of an hour a test and round as anywhere; and what qemu 7.2 does not
    # bear: an assertion of its own fails where a process with threads forks, and a limit of threads refuses its own.
    beyond_qemu='AccuracyLong|Fork\.(NewHandle|Grandchild)|Pools\.(OwnIsThereAgain|ForkWhile)|Machine\.ManyCallers|Refused\.[ET]'
    targets=(all) tests=(--exclude-regex "$beyond_qemu") options=(-DFA_CHECK_FILES= -DFA_UNOPTIMISED_ISAS= -DFA_KERNEL_OPTIMISATION=-O3)
    shift
}
case "$#/${1-}" in
    1/aarch64 | 1/s390x) machine=$1 ;;
    *) sed -n '2,5s/^# *//p' "$0"; exit 2 ;;
esac

tools/install_packages.sh "g++-$machine-linux-gnu" qemu-user googletest cmake ninja-build
printf '\n== Building %s\n' "$machine"
cmake --preset "$machine" -DFA_TESTS=ON -DFA_WERROR=ON "${options[@]}" --log-level=WARNING >/dev/null
cmake --build --preset "$machine" --target "${targets[@]}" -- --quiet
printf '\n== Testing %s\n' "$machine"
export OMP_WAIT_POLICY=passive CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL-$(nproc)}
ctest --preset "$machine" --progress --no-tests=error "${tests[@]}"
