#!/usr/bin/env bash
# Everything that needs a GPU, in one go: the checks of tests/check on the CUDA backend, the compute sanitizer over a part of them, and the
# comparison with PyTorch where torch is installed. Continuous integration has no GPU: run this after a change to src/gpu or src/cuda.
#   gpu_check.sh [--quick] BUILD_DIR [RESULTS.json]     BUILD_DIR: configured with -DFA_CUDA=ON and built
set -euo pipefail
quick=
[ "${1-}" != --quick ] || { quick=1; shift; }
build=$(cd "${1:?usage: gpu_check.sh [--quick] BUILD_DIR [RESULTS.json]}" && pwd)
results=${2-}
cd "$(dirname "$0")/.."

check=$build/tests/check/fa_check
export FLASHATTN_TEST_BACKEND=cuda FLASHATTN_BACKEND_DIR=$build/src/cuda/module FLASHATTN_LIBRARY=$build/src/libflashattn.so.0
passed=0 failed=0
run() {
    local name=$1
    shift
    printf '== %s\n' "$name"
    if timeout 300 "$@" >"$build/gpu_check.log" 2>&1; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        tail -n 40 "$build/gpu_check.log"
    fi
}

some='Count.ManyRows:Count.SplitsAnywhere:Merge.*:Rotary.*:Append.*:NotANumber.*'
run "random calls against the oracle" "$check" --gtest_brief=1 --gtest_filter='Shard/Random.*'
run "counting, hostile data, cache, merge" "$check" --gtest_brief=1 --gtest_filter='Count.*:Hostile*:NotANumber.*:Infinity.*:Merge.*:Rotary.*:Append.*:Decode*:Failures.*'
run memcheck compute-sanitizer --tool memcheck --error-exitcode 1 "$check" --gtest_brief=1 --gtest_filter="$some"
if [ -z "$quick" ]; then
    for tool in racecheck synccheck initcheck; do
        run "$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 "$check" --gtest_brief=1 --gtest_filter="$some"
    done
    run accuracy "$check" --gtest_brief=1 --gtest_filter='*Accuracy*'
fi
if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    printf '== comparison with PyTorch\n'
    if python3 -W ignore bench/compare_gpu.py $([ -n "$quick" ] && echo --quick || echo --fast) ${results:+--json "$results"}; then
        passed=$((passed + 1))
    else failed=$((failed + 1)); fi
fi
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
