#!/usr/bin/env bash
# Builds the library and its tests for another machine, warnings as errors, and runs them on an emulated CPU: aarch64 (NEON alone, and SVE
# with vectors of 128, 256 and 512 bits), s390x (high byte first), riscv64 (without V, and with vectors of 128, 256, 512 and 1024 bits). The
# last lines are ctest's own summary.
#   test_cross.sh MACHINE          what every change must pass
#   test_cross.sh --full MACHINE   everything that runs there, but for sums over thousands of keys: an hour and a half
set -euo pipefail
cd "$(dirname "$0")/.."

targets=(fa_check abi_test abi_layout abi_c99) tests=(--label-regex quick)
# What the quick tests of a machine name: files of tests/check, and no kernels for vectors of these lengths. The others' text is tested: how
# far a compiler optimises it counts for --full.
options=(-DFA_CHECK_FILES='accuracy|count|hostile|native|random' -DFA_UNOPTIMISED_ISAS="sve128;sve512;sve512_bf16;rvv128;rvv512" -DFA_KERNEL_OPTIMISATION=-O1)
[ "${1-}" != --full ] || {
    # Left out are sums over thousands of keys, which take a quarter of an hour a test and round as anywhere; and what qemu 7.2 does not
    # bear: an assertion of its own fails where a process with threads forks, and a limit of threads refuses its own.
    beyond_qemu='AccuracyLong|Fork\.(NewHandle|Grandchild)|Pools\.(OwnIsThereAgain|ForkWhile)|Machine\.ManyCallers|Refused\.[ET]'
    targets=(all) tests=(--exclude-regex "$beyond_qemu") options=(-DFA_CHECK_FILES= -DFA_UNOPTIMISED_ISAS= -DFA_KERNEL_OPTIMISATION=-O3)
    shift
}
case "$#/${1-}" in
    1/aarch64 | 1/s390x | 1/riscv64) machine=$1 ;;
    *) sed -n '2,6s/^# *//p' "$0"; exit 2 ;;
esac

tools/install_packages.sh "g++-$machine-linux-gnu" qemu-user googletest cmake ninja-build
if [ "$machine" = riscv64 ]; then
    tools/install_packages.sh clang-19
    # QEMU 7.2, which Debian 12 has, dies of vectors of floats that become integers. A later one is among Debian's backports, and runs from
    # where it is unpacked.
    if [[ "$(qemu-riscv64 --version)" = *"version 7."* ]]; then
        folder=$PWD/build/qemu
        if [ ! -x "$folder/usr/bin/qemu-riscv64" ]; then
            mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"
            keys=/usr/share/keyrings/debian-archive-keyring.gpg
            echo "deb [signed-by=$keys] http://deb.debian.org/debian bookworm-backports main" >"$folder/sources.list"
            backports=(-o APT::Sandbox::User=root -o "Dir::Etc::SourceList=$folder/sources.list" -o Dir::Etc::SourceParts=-
                -o "Dir::State::Lists=$folder/lists" -o "Dir::Cache=$folder/cache" -q=2)
            apt-get "${backports[@]}" update
            (cd "$folder" && apt-get "${backports[@]}" download qemu-user && dpkg -x qemu-user_*.deb .)
        fi
        export PATH=$folder/usr/bin:$PATH
    fi
    export QEMU_CPU=rv64,v=true,vlen=256
    [ "${targets[*]}" = all ] || targets+=(cross_chosen)
fi
printf '\n== Building %s\n' "$machine"
cmake --preset "$machine" -DFA_TESTS=ON -DFA_WERROR=ON "${options[@]}" --log-level=WARNING >/dev/null
cmake --build --preset "$machine" --target "${targets[@]}" -- --quiet
printf '\n== Testing %s\n' "$machine"
export OMP_WAIT_POLICY=passive CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL-$(nproc)}
ctest --preset "$machine" --progress --no-tests=error "${tests[@]}"
