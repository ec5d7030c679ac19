#!/usr/bin/env bash
# Every barrier of the device text is needed, and the emulator shows it: with any one removed, the checks fail.
#   barriers.sh FA_CHECK SOURCE_DIR
set -euo pipefail
exec 2>/dev/null  # bash's own word on each process that ends by a signal
check=$(realpath "$1")
cd "$2/gpu"

# fails PLACE WAVE FILTER: do the checks fail without that barrier, the threads taken forwards or backwards? What takes too long says
# nothing.
fails() {
    local status
    for order in backward forward; do  # what the first thread places, those behind it find in a forward order
        status=0
        FLASHATTN_EMU_WITHOUT_BARRIER=$1 FLASHATTN_EMU_WAVE=$2 FLASHATTN_EMU_ORDER=$order \
            timeout 300 "$check" --gtest_break_on_failure --gtest_filter="$3" >/dev/null 2>&1 || status=$?
        [ "$status" -ne 124 ] || echo "$1, $order: no end within 300 s"
        [ "$status" -eq 0 ] || [ "$status" -eq 124 ] || return 0
    done
    return 1
}

forward='Shard/Random.AgreesWithTheOracle/0' backward='Shard/RandomBackward.AgreesWithTheOracle/0'
FA_CASES=300 fails none:1 64 "$forward:$backward" && echo "the checks fail with all barriers in place" && exit 1
count=0 overlooked=0
while IFS=: read -r file line _; do
    [ "$file" != mma/cluster.h ] || continue  # no emulated device has clusters
    # Matrix kernels run on waves of 32, and take most calls there.
    wave=64 filter=$forward
    case $file in *mma*) wave=32 ;; esac
    [ "$file" != latent/forward.h ] || { wave=32 filter=LatentBytes.Options; }
    [ "$file" != latent/forward_bytes.h ] || { wave=32 filter=LatentBytes.Decodes; }
    # Those between the parts of an output are AMD's, whose blocks stage one at a time, and so is the backward of transposed/backward.h.
    unset FLASHATTN_EMU_MATRIX
    case $file in simt/*) filter=$forward:*Ranges*Hide* ;; esac  # tiles between ranges, in the baselines, too
    [[ $(sed -n "${line}p" "$file") != *kOutputPasses* ]] || export FLASHATTN_EMU_MATRIX=wmma_gfx12
    [[ $file != backward/* ]] || filter=$backward
    [ "$file" != backward/mma.h ] || filter=$backward:Failures.F18*backward  # it has NaN in rows without keys,
    [ "$file" != transposed/backward.h ] || { wave=32 filter=$backward:Failures.F18*backward; export FLASHATTN_EMU_MATRIX=wmma_gfx12; }
    [ "$file" != backward/rows.h ] || filter='Failures.F18*backward'         # and sinks
    [ "$file" != backward/bias.h ] || filter=${backward%0}2  # it has sums over sequences of different lengths, and over rows and keys at once
    [ "$file" != common/merge.h ] || filter='Reassemble.*Splits*'
    [ "$file" != rows/merge_partials.h ] || filter='Merge.*:Rotary.*:Append.*'
    count=$((count + 1))
    fails "gpu/$file:$line" "$wave" "$filter" || { echo "nothing fails without the barrier in src/gpu/$file:$line"; overlooked=$((overlooked + 1)); }
done < <(grep -rnE --include='*.h' 'rt::(named_)?barrier(_of_roles)?\(' . | sed 's|^\./||')
echo "$count barriers, $overlooked of them overlooked"
[ "$count" -gt 0 ] && [ "$overlooked" -eq 0 ]
