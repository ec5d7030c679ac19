#!/usr/bin/env bash
# Compiles the HIP backend's device code by clang 19, with the matrix kernels and for GPUs newer than Debian's HIP knows, and fails where a
# kernel spills. The objects are for this check alone: they stand on device libraries of 2022, in which only plain arithmetic is sure to
# fit these targets.
#   check_hip_targets.sh [TARGET…]     default: gfx942 gfx1100 gfx1200 gfx1201
# Debian packages: clang-19 lld-19 clang-tools-19 libamdhip64-dev rocm-device-libs
set -euo pipefail
cd "$(dirname "$0")/.."

targets=("$@")
[ $# -gt 0 ] || targets=(gfx942 gfx1100 gfx1200 gfx1201)
clang=/usr/lib/llvm-19/bin
libraries=/usr/lib/$(uname -m)-linux-gnu/amdgcn/bitcode
out=build/hip_targets
rm -rf "$out"
mkdir -p "$out"
ln -s "$libraries"/*.bc "$out"

# What Debian's device libraries lack for a new target is one constant: gfx90a is 9010, gfx1100 is 11000.
add_constant() {
    local name=${1#gfx} stepping
    [ -e "$out/oclc_isa_version_$name.bc" ] && return
    stepping=$((16#${name: -1}))
    printf '__constant const unsigned __oclc_ISA_version __attribute__((weak)) = %d;\n' $((${name%??} * 1000 + ${name: -2:1} * 100 + stepping)) |
        "$clang/clang" -x cl -target amdgcn-amd-amdhsa -nogpulib -O2 -emit-llvm -c - -o "$out/oclc_isa_version_$name.bc"
}

compile() {
    "$clang/clang++" -x hip --rocm-path=/usr --rocm-device-lib-path="$out" --offload-arch="$1" --offload-device-only --no-gpu-bundle-output \
        -std=c++17 -O3 -ffp-contract=off -fno-exceptions -fno-rtti -fvisibility=hidden -Wall -Wextra -Werror -Wno-unused-result \
        -Iinclude -Isrc -c src/hip/backend_hip.hip -o "$out/$1.o"
}

for target in "${targets[@]}"; do add_constant "$target"; done
export -f compile
export clang out
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -ec 'compile {}'
objects=("${targets[@]/#/$out/}")
tools/hip_kernels "${objects[@]/%/.o}"
