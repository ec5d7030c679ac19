#!/usr/bin/env bash
# Installs what is missing, builds with warnings as errors, and tests. No GPU is needed.
#   test.sh          the optimised build with its tests, and the core under the address and undefined-behaviour sanitizers: while you work
#   test.sh --all    what every change must pass: the core and the numbers under these sanitizers, 64-bit ARM on an emulated CPU, then the optimised
#                    build with every CUDA kernel as PTX and the HIP module for one target, and what that build cost
#   test.sh --full   all tests in all builds, machine code for all GPUs, the thread sanitizer, packages and, for an hour each, all tests on
#                    emulated CPUs of 64-bit ARM and of IBM Z, whose numbers have the high byte first
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1-}" in
    "") presets=(core quick) ;;
    --all) presets=(asan release) ;;
    --full) presets=(dev asan tsan release) ;;
    *) sed -n '2,8s/^# *//p' "$0"; exit 2 ;;
esac

# A heading begins a step. What each took, by the clock and of all processors together, the end of the run tells.
steps=() step=Installing began=0 before=0
enter() {
    local work
    mkdir -p build
    times >build/times
    work=$(awk -F '[ms ]+' 'NR == 2 {print int(60 * $1 + $2 + 60 * $3 + $4)}' build/times)
    steps+=("$(printf '%6d s %6d s  %s' $((SECONDS - began)) $((work - before)) "$step")")
    step=$1 began=$SECONDS before=$work
    printf '\n== %s\n' "$step"
}

packages=(git g++ cmake ninja-build pkg-config libgtest-dev libcli11-dev nlohmann-json3-dev python3-numpy python3-venv mandoc clang-19)
[ "${1-}" = "" ] || packages+=(cargo rustc rust-clippy golang-go librust-half-dev lld-19 clang-tools-19 llvm-19 libamdhip64-dev
    g++-aarch64-linux-gnu qemu-user googletest abigail-tools openmpi-bin libopenmpi-dev)
[ "${1-}" != --full ] || packages+=(clang libomp-14-dev fish zsh g++-s390x-linux-gnu)
tools/install_packages.sh "${packages[@]}"
if [ "${1-}" != "" ]; then
    nvcc=$(tools/install_nvcc.sh)
    PATH=$PATH:$(dirname "$nvcc")  # the headers' test looks there for compilers
fi

# Debian has NumPy, but not its bfloat16 and 8-bit floats; of mypy and clang-format one version each, for each has its own opinions.
venv=$PWD/build/venv format=$(tools/check_format --version)
if ! "$venv/bin/python" -c "import importlib.metadata, ml_dtypes, mypy; assert importlib.metadata.version('clang-format') == '$format'" 2>/dev/null; then
    echo "== Installing ml_dtypes, mypy and clang-format (build/venv)"
    /usr/bin/python3 -m venv --clear --system-site-packages "$venv"
    "$venv/bin/pip" install --quiet --no-deps --only-binary :all: ml_dtypes==0.4.1 mypy==1.11.2 mypy_extensions==1.0.0 \
        typing_extensions==4.12.2 "clang-format==$format"
fi

torch=
[ "${1-}" = "" ] || torch=$(tools/install_torch.sh)

# The site is built meanwhile, which is work for one processor.
site=
trap '[ -z "$site" ] || kill "$site" 2>/dev/null || true' EXIT
if [ "${1-}" != "" ]; then
    tools/build_site >build/site.log 2>&1 &
    site=$!
fi

# Tests that can leave out what takes long do so; and what another run left out of a build would stay out of it.
if [ "${1-}" = --full ]; then rm -f build/{dev,asan,tsan,release}/CMakeCache.txt; else export FA_QUICK=1; fi
# Tests run side by side: threads that wait must not spin.
export OMP_WAIT_POLICY=passive CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL-$(nproc)}
within_budget=yes
for preset in "${presets[@]}"; do
    modules=()
    [ "${1-}" != --full ] || modules=(-DFA_SANITIZE_EMULATOR=ON -DFA_SANITIZE_AVX512=ON)
    # A room of tests is in one of the two builds: what reads and checks input under the sanitizers; numbers, the tool and ranks in the
    # optimised one. Of tests/check, the sanitizers have the files whose calls differ in shape. Tensors there end and begin at guard pages, so
    # that the optimised build sees accesses out of bounds, too. --full has all in both, and the emulator's device text.
    shapes='random|random_backward|append|convert|rotary|merge|thread_state|layout'
    [ "$preset" != asan ] || [ "${1-}" = --full ] || modules=(-DFA_CLI=OFF -DFA_CP=OFF -DFA_CHECK_FILES="$shapes"
        -DFA_TEST_ROOMS="abi;api;cxx;spec;check;modules;hardening;examples")
    if [ "$preset" = release ]; then
        modules=(-DFA_CUDA=ON -DFA_HIP=ON -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CXX_COMPILER_LAUNCHER="$PWD/tools/keep_time")
        # CUDA kernels are compiled quickly, to PTX: the committed table has the registers of the same sources. Of AMD's GPUs, one has
        # machine code, which takes two minutes; for one of each other kind of matrix cores LLVM's language has to do.
        [ "$1" = --full ] || modules+=(-DFA_CUDA_PTX=ON -DFA_HIP_ARCHITECTURES=gfx90a -DFA_HIP_TRANSLATED="gfx942;gfx1100;gfx1201"
            -DFA_TEST_ROOMS="house;docs;abi;check;cp;emulator;gpu;modules;cuda;budgets;cli;bench;package;ffi;hip")
        enter "aarch64: building and testing"
        tools/test_cross.sh $([ "$1" != --full ] || echo --full) aarch64
        if [ "$1" = --full ]; then
            enter "s390x: building and testing"
            tools/test_cross.sh --full s390x
        fi
    fi
    enter "Building $preset"
    cmake --preset "$preset" -DFA_TESTS=ON -DFA_WERROR=ON -DFA_PYTHON="$venv/bin/python" -DFA_TORCH="$torch" "${modules[@]}" --log-level=WARNING >/dev/null
    cmake --build --preset "$preset" -- --quiet
    if [ "$preset" = release ]; then
        enter "What the build cost"
        tools/check_budgets build/release || within_budget=no
    fi
    enter "Testing $preset"
    # For --full. Under the sanitizers: large sums, most of the random calls, and levels of instruction sets whose text another level has, too.
    # Of the optimised build: to build the CUDA module once more takes minutes, the CPU's part for Rust two, and the HIP module one, the
    # emulator without one barrier after the other more than one; what the tool verifies on the emulator, and the emulator's tests that end
    # in Full, other tests cover in part. So do other types of those stored types that are left out, and avx512_bf16 and amx, which have
    # avx512's kernels but where they have their own, of avx512: random calls have it, too. Never under the sanitizers: the emulator's text
    # in waves of 64, and the tool on it, which are what waves of 32 run once more.
    without=()
    [ "$preset" != asan ] || without=(-E 'Emulator.(Cli|.*Wave64)')
    levels='/(avx512|avx512_bf16|amx_fp16|neon|neon_bf16|sve|sve_bf16)( |$)'
    large='EightThousandKeys|SpecHeaders|Shard/Random.*/([6-9]|1.|2.)$|RandomBackward.*/[3-9]$|GeneratedCanFail|ReachesEveryOption'
    [ "$preset" != asan ] || [ "${1-}" = --full ] || without=(-E "$levels|$large")
    slow='Package.(Bundle|Module)|Ffi.Rust_Bundled|BarriersMatter|Emulator.Cli.emulated|Emulat.*Full$'
    types='Types/Stored\..*/(f16_e5m2|bf16_e4m3|f16_i8) |StoredBlocks.*/(q8_0_under_f16|q5_0_under_f16|q4_0_under_bf16) |StoredScaled.*/'
    types+='(e5m2_with_i8|e4m3_of_rows_under_f16|mxfp8|e2m1_with_e4m3_factors|nvfp4_under_f16|nvfp4_of_both_under_f16|i8_with_bf16_factors'
    types+='|q4_1_under_f16|u4_with_shifts|e2m1_with_shifts) '
    seeds='Shard/Random.Agrees.*/(1[6-9]|2.)$|Shard/RandomBackward.*/[6-9]$'
    [ "$preset" != release ] || [ "${1-}" = --full ] || without=(-E "$slow|/avx512( |\$)|$types|$seeds")
    ctest --preset "$preset" --progress "${without[@]}"
done
if [ "${1-}" != "" ]; then
    enter "The site, which was built meanwhile"
    built=0
    wait "$site" || built=$?
    site=
    cat build/site.log
    [ "$built" = 0 ] || exit "$built"
fi
if [ "${1-}" = --full ]; then
    enter "Windows: building, and running under Wine"
    tools/test_systems.sh
    enter "The backend for ggml"
    adapters/ggml/test/run
    enter "Python with torch and JAX"
    tools/test_frameworks.sh
    enter "Packages"
    tools/install_packages.sh lintian debhelper dpkg-dev dh-python pybuild-plugin-pyproject python3-all python3-setuptools python3-sphinx \
        python3-matplotlib python3-myst-parser python3-sphinx-copybutton furo autopkgtest mmdebstrap faketime rpm rpmlint
    packaging/check_reproducible build/reproducible
    packaging/test_deb --bare build/reproducible/one
    packaging/build_rpm
    FLASHATTN_CUDA_MODULE=$PWD/build/release/src/cuda/module/libflashattn-cuda.so packaging/build_wheels --cuda
    packaging/test_wheels --jax
fi
enter "Seconds of each step: passed, and worked by all processors"
printf '%s\n' "${steps[@]}"
[ "$within_budget" = yes ] || { echo "The build costs too much: see above."; exit 1; }
