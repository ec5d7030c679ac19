# launches.sh PROGRAM: do the kernels of a backward get what its plan has? GCC 12.2 once left out all but the types.
. "$(dirname "$0")/common.sh"

launched=$("$1") || { printf "FAILED: %s\n" "$launched" >&2; exit 1; }
word() { printf ' %016x' "$1"; }
# Rows, padded; strides of o and of the LSE; dims; heads; and of the scale, .171875, the bits.
for kernel in prepare_sm90 backward_sm90 finish_sm90 backward_preprocess finish_dq; do
    parameters=$(grep -m 1 -- "$kernel" <<<"$launched") || { printf 'FAILED: no %s in:\n%s\n' "$kernel" "$launched" >&2; exit 1; }
    expect "$parameters" "$(word 1152)" "$(word 150016)$(word 376)$(word 72)" "$(word 2016)$(word 1)$(word 400)" "$(word 64)" "$(word 5)" 3e300000
done
