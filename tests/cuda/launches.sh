# launches.sh PROGRAM: do the kernels of a backward get what its plan has? GCC 12.2 once left out all but the types. And are those loaded
# that are launched, when they are, and no others?
. "$(dirname "$0")/common.sh"

said() { "$@" || { echo "FAILED: $*" >&2; exit 1; }; }
launched=$(said "$1")
word() { printf ' %016x' "$1"; }
# Rows, padded; strides of o and of the LSE; dims; heads; and of the scale, .171875, the bits.
for kernel in prepare_sm90 backward_sm90 finish_sm90 backward_preprocess finish_dq; do
    parameters=$(grep -m 1 -- "^launch .*$kernel" <<<"$launched") || { printf 'FAILED: no %s in:\n%s\n' "$kernel" "$launched" >&2; exit 1; }
    expect "$parameters" "$(word 1152)" "$(word 150016)$(word 376)$(word 72)" "$(word 2016)$(word 1)$(word 400)" "$(word 64)" "$(word 5)" 3e300000
done

# A handle asks whether there is code, and questions load nothing.
loads() { sed -n 's/^load //p' | sort; }
expect "$(sed '/^calls$/q' <<<"$launched" | loads)" probe
[ "$(sed '/^calls$/q' <<<"$launched" | loads | wc -l)" = 1 ] || { printf 'FAILED: a kernel is loaded before a call:\n%s\n' "$launched" >&2; exit 1; }
diff <(sed '1,/^calls$/d' <<<"$launched" | loads) <(sed -n 's/^launch \([^:]*\):.*/\1/p' <<<"$launched" | sort -u) >&2 ||
    { echo "FAILED: what is loaded (<) is not what is launched (>)" >&2; exit 1; }

# Where they are compiled, the log says so.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export FAKE_PTX=1 FLASHATTN_LOG=info FLASHATTN_LOG_FILE=$log
said "$1" >/dev/null
expect "$(cat "$log")" "kernel backward_preprocess and those of its unit were compiled from PTX for sm_90, 0.1 s"
