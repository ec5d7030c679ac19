#!/usr/bin/env bash
# Everything that needs a GPU, in one go: the checks of tests/check on the CUDA backend, tests/gpu, the compute sanitizer over every kernel,
# what a call costs, and, where torch is installed, flashattn.torch and the comparison with PyTorch. Continuous integration has no GPU: run
# this after a change to src/gpu or src/cuda. Ends in a summary line, and leaves a JSON file.
#   gpu_check.sh [--quick] BUILD_DIR [RESULTS.json]     BUILD_DIR: configured with -DFA_CUDA=ON -DFA_BENCH=ON and built
# With -DFA_CUDA_SM90=OFF, too, a Hopper has the kernels of every GPU from sm_80 on, and these alone are tested.
set -euo pipefail
quick=
[ "${1-}" != --quick ] || { quick=1; shift; }
build=$(cd "${1:?usage: gpu_check.sh [--quick] BUILD_DIR [RESULTS.json]}" && pwd)
results=$(realpath -m "${2-$build/gpu_check.json}")
cd "$(dirname "$0")/.."

check=$build/tests/check/fa_check gpu=$build/tests/gpu/fa_gpu
export FLASHATTN_TEST_BACKEND=cuda FLASHATTN_BACKEND_DIR=$build/src/cuda/module FLASHATTN_LIBRARY=$build/src/libflashattn.so.0
logs=$build/gpu_check
rm -rf "$logs"
mkdir -p "$logs"
passed=0 failed=0 entries=

# record NAME SECONDS STATUS LOG…: prints a line, and keeps it for the JSON file. Of a test program's log, what it says at the end counts.
record() {
    local name=$1 seconds=$2 status=$3 word=passed tests
    shift 3
    tests=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$@" | awk '{n += $1} END {print n + 0}')
    if [ "$status" -eq 0 ]; then passed=$((passed + 1)); else
        word=FAILED failed=$((failed + 1))
        mapfile -t logs_to_show < <(grep -l '^\[  FAILED  \]' "$@" || printf '%s\n' "$@")
        grep -h -m 30 '^=========' "${logs_to_show[@]}" || true  # the sanitizer's first words
        tail -q -n 40 "${logs_to_show[@]}"
    fi
    grep -h -B1 -A1 ': Skipped$' "$@" | grep -v '^--$\|: Skipped$\|^\[' | sort | uniq -c | sed 's/^ */   skipped /' || true
    printf '%-52s %s, %d tests, %d s\n' "$name" "$word" "$tests" "$seconds"
    entries+="${entries:+,}
  {\"name\": \"$name\", \"passed\": $([ "$status" -eq 0 ] && echo true || echo false), \"tests\": $tests, \"seconds\": $seconds}"
}

# Slots of processes at once, a byte each: who begins takes one, and puts it back.
mkfifo "$logs/slots"
exec {slots}<>"$logs/slots"

# deal PROCESSES LOG COMMAND…: a test program's tests dealt out to several processes, for much of their time goes into the oracle's one
# thread; and these to the devices that no comparison has, in turn, unless CUDA_VISIBLE_DEVICES is set. Each waits for a slot; who came
# first begins first.
turn=0
deal() {
    local processes=$1 log=$2 status=0 jobs=()
    shift 2
    for ((n = 0; n < processes; n++)); do
        (
            read -r -N 1 -u "$slots"
            status=0
            CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-${shared[(turn + n) % ${#shared[@]}]}} GTEST_TOTAL_SHARDS=$processes GTEST_SHARD_INDEX=$n \
                timeout "$limit" "$@" >"$log.$n" 2>&1 || status=$?
            printf . >&"$slots"
            exit "$status"
        ) &
        jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job" || status=$?; done
    return "$status"
}
log_of() { printf '%s' "$logs/${1//[^a-z0-9]/_}"; }

# run NAME PROCESSES COMMAND…
run() {
    local name=$1 begin=$SECONDS status=0 log
    log=$(log_of "$1")
    deal "$2" "$log" "${@:3}" || status=$?
    record "$name" $((SECONDS - begin)) "$status" "$log".*
}

# beside NAME PROCESSES COMMAND…: as run, beside what follows; settle waits for all of these and tells of them.
declare -A aside=()
beside() {
    local log
    log=$(log_of "$1")
    (
        SECONDS=0 status=0
        deal "$2" "$log" "${@:3}" || status=$?
        printf '%d %d\n' "$SECONDS" "$status" >"$log-end"
    ) &
    aside[$1]=$!
    turn=$((turn + $2))
}
settle() {
    local name log seconds status
    wait "${aside[@]}" || true
    while IFS= read -r name; do
        log=$(log_of "$name")
        read -r seconds status <"$log-end"
        record "$name" "$seconds" "$status" "$log".*
    done < <(printf '%s\n' "${!aside[@]}" | sort)
}

limit=600  # seconds of a process
# spread NAME FILTER: the tests of fa_check that the filter names.
spread() { beside "$1" 24 "$check" --gtest_brief=1 --gtest_filter="$2"; }

# shards SUITE N: the first N of its random calls' shards, each of 1,000.
shards() { for ((n = 0; n < $2; n++)); do printf 'Shard/%s.*/%d:' "$1" "$n"; done; }

# Kernels that a tool does not understand, by their mangled names.
# - racecheck, latent_tokens_sm90: its producers' copies arrive at an mbarrier by themselves (cp.async.mbarrier.arrive.noinc). The tool,
#   before its version of 2026, takes that for an arrival of the thread, made at once, and the copies for ones that nobody has waited for.
# - synccheck, MmaLatentByte: its roles meet at a barrier with a number and a count, each at a place of its own in the text, which PTX
#   allows.
declare -A not_understood=([racecheck]=latent_tokens_sm90 [synccheck]=MmaLatentByte)
# sanitize TOOL: over some calls of every kernel, beside what follows; racecheck takes its time, and has fewer of Hopper's and of the
# backward's.
sanitize() {
    local sanitizer=(compute-sanitizer --tool "$1" --error-exitcode 1) tests=("$gpu" --gtest_brief=1) cases=12
    [ "$1" != racecheck ] || cases=4
    for kernel in ${not_understood[$1]-}; do
        sanitizer+=(--kernel-name-exclude "regex=$kernel")
        printf '   %s leaves out %s\n' "$1" "$kernel"
    done
    beside "$1 over every backward kernel" 1 env FA_CASES="$cases" "${sanitizer[@]}" "${tests[@]}" --gtest_filter='EveryBackwardKernel.AgreesWithTheOracle'
    beside "$1 over every kernel" 1 env FA_CASES=12 "${sanitizer[@]}" "${tests[@]}" --gtest_filter='EveryKernel.AgreesWithTheOracle'
    beside "$1 over every kernel of Hopper" 12 env FA_CASES="$cases" "${sanitizer[@]}" "${tests[@]}" --gtest_filter='*EveryHopperKernel*'
    beside "$1 over conversions" 1 "${sanitizer[@]}" "$check" --gtest_brief=1 --gtest_filter='Convert.*'
}

# compare run|beside NAME SUITES FILE [PID]: with torch, when process PID has ended; figures go to FILE.json.
compare() {
    local effort=(--fast --rounds 3) limit=$((2 * limit))  # hundreds of rows, whose rivals wait for a busy processor
    [ -z "$quick" ] || effort=(--quick)
    "$1" "$2" 1 bash -c '[ -z "$0" ] || tail --pid="$0" -f /dev/null; exec "$@"' "${5-}" \
        python3 -W ignore bench/compare_gpu.py --suite "$3" "${effort[@]}" --json "$logs/$4.json"
}
has_torch() { python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; }
# The suites of kernels that a Hopper does without are for a build that leaves its own out, and no others are.
of_build=(-v -e -mma$)
! grep -q '^FA_CUDA_SM90:BOOL=OFF$' "$build/CMakeCache.txt" || of_build=(-e -mma$)
suites() {
    PYTHONPATH=bench python3 -c 'from compare.work import SUITES; print(*SUITES, sep="\n")' | grep "${of_build[@]}" | grep "$@" | paste -sd,
}
compare_forward() { compare "$1" "comparison with torch" "$(suites -v '^backward')" comparison; }
compare_backward() { compare "$1" "comparison of gradients" "$(suites '^backward')" gradients "${2-}"; }

device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)
printf '%s%s\n' "$device" "${quick:+, quick}"
# A comparison wants a device for itself. Where there are three both run beside the checks, where there are two one after the other, and
# where there is one at the end.
alone=1 devices=$(nvidia-smi -L | wc -l)
mapfile -t shared < <(seq 0 $((devices - 1)))  # devices that no comparison has
all=${CUDA_VISIBLE_DEVICES-$(IFS=, && echo "${shared[*]}")}
if [ "$devices" -ge 2 ] && has_torch; then
    alone=
    CUDA_VISIBLE_DEVICES=1 compare_forward beside
    if [ "$devices" -eq 2 ]; then CUDA_VISIBLE_DEVICES=1 compare_backward beside "${aside["comparison with torch"]}"
    else CUDA_VISIBLE_DEVICES=2 compare_backward beside; fi
    shared=(0 "${shared[@]:3}")
fi
# Of a hundred processes at once on a device of 140 GB half failed, for want of memory.
at_once=$((${#shared[@]} * 40)) with_cores=$(($(nproc) * 3 / 2))
printf '%*s' $((at_once < with_cores ? at_once : with_cores)) '' >&"$slots"
sanitizers=(racecheck memcheck synccheck initcheck)  # what takes longest begins first
[ -z "$quick" ] || sanitizers=(memcheck)
for tool in "${sanitizers[@]}"; do sanitize "$tool"; done
beside "every kernel" 24 "$gpu" --gtest_brief=1 --gtest_filter='EveryKernel.*:*EveryHopperKernel*-*Times*'
beside "every backward kernel" 9 "$gpu" --gtest_brief=1 --gtest_filter='EveryBackwardKernel*-*Times*'
for kb in 163 99; do  # what a block has on sm_80, and on sm_86, sm_89 and sm_120
    beside "kernels with $kb KB of shared memory a block" 2 env FLASHATTN_MAX_SHARED="$kb" "$gpu" --gtest_brief=1 \
        --gtest_filter='Every*Kernel.AgreesWithTheOracle'
done
beside "the same bits a thousand times" 6 "$gpu" --gtest_brief=1 --gtest_filter='*EveryKernel*Times*'
beside "the same gradients a thousand times" 1 "$gpu" --gtest_brief=1 --gtest_filter='EveryBackwardKernel.*Times*'
CUDA_VISIBLE_DEVICES=$all beside "streams, threads, devices" 1 "$gpu" --gtest_brief=1 --gtest_filter='Streams.*'
beside "graphs, and a decode loop in one; pages" 1 "$gpu" --gtest_brief=1 --gtest_filter='Graphs.*:DecodeLoop.*:Pages.*'
CUDA_VISIBLE_DEVICES=$all beside "context parallelism in device memory" 4 "$build/tests/cp/fa_cp_test" --gtest_brief=1 --gtest_filter='*DeviceMemory*'
[ ! -x "$build/tests/cp/fa_cp_nccl_test" ] ||
    CUDA_VISIBLE_DEVICES=$all beside "context parallelism over NCCL" 1 "$build/tests/cp/fa_cp_nccl_test" --gtest_brief=1
beside "flashattn verify" 1 "$build/cli/flashattn" verify
beside "a program without CUDA" 1 "$build/tests/gpu/fa_gpu_without_cuda"
beside "the example of a decode loop" 1 "$build/tests/gpu/fa_gpu_decode_loop"
if [ -n "$quick" ]; then
    spread "6,000 random calls against the oracle" "$(shards Random 6)"
    spread "3,000 random gradients against the oracle" "$(shards RandomBackward 3)"
    spread "counting, hostile data, cache, merge, gradients" 'Count.*:Hostile*:NotANumber.*:Infinity.*:Merge.*:Rotary.*:Append.*:Decode.*:*Backward*-Shard/*'
else
    spread "24,000 random calls against the oracle" 'Shard/Random.*'
    spread "10,000 random gradients against the oracle" "$(shards RandomBackward 10)"
    spread "all other checks" '*-Shard/*:Oracle*:Judge.*:AccuracyStudy.*:Guards.*'
fi
settle
# These want the devices for themselves.
export CUDA_VISIBLE_DEVICES=$all
run "no memory, refused launches, a fault" 1 "$gpu" --gtest_brief=1 --gtest_filter='DeviceFailures.*'
[ -n "$quick" ] || run "more than 2^31 elements, more than 65,535 items" 1 "$gpu" --gtest_brief=1 --gtest_filter='Sizes.*'
run "the cost of a call" 1 "$build/bench/fa_bench_calls" "$logs/calls.json"
cat "$logs/the_cost_of_a_call.0"
if has_torch; then
    run "flashattn.torch" 1 env PYTHONPATH="$PWD/bindings/python:$PWD/tests/ffi/python" \
        python3 -W ignore -m unittest -v tests/ffi/python/test_torch.py tests/ffi/python/test_torch_cache.py tests/ffi/python/test_torch_operands.py
    # FA_XLA of the build decides whether JAX's handlers are there.
    [ ! -e "$build/src/libflashattn-xla.so" ] || run "flashattn.jax, and CuPy's arrays" 1 env PYTHONPATH="$PWD/bindings/python:$PWD/tests/ffi/python" \
        python3 -W ignore -m unittest -v tests/ffi/python/test_gpu.py
    [ -z "$alone" ] || { compare_forward run; compare_backward run; }
    cat "$logs/comparison_with_torch.0" "$logs/comparison_of_gradients.0"
fi

# part NAME FILE: a member of the results, where the file is there.
part() { [ ! -s "$2" ] || printf ',\n "%s": %s' "$1" "$(cat "$2")"; }
{
    printf '{"device": "%s", "quick": %s, "passed": %d, "failed": %d, "seconds": %d,\n "checks": [%s]' "$device" \
        "$([ -n "$quick" ] && echo true || echo false)" "$passed" "$failed" "$SECONDS" "$entries"
    part calls "$logs/calls.json"
    part comparison "$logs/comparison.json"
    part gradients "$logs/gradients.json"
    printf '}\n'
} >"$results"
printf '%d passed, %d failed in %d s: %s\n' "$passed" "$failed" "$SECONDS" "$results"
[ "$failed" -eq 0 ]
