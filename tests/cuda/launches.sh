# launches.sh PROGRAM: do the kernels of a backward get what its plan has? GCC 12.2 once left out all but the types. And are those loaded
# that are launched, when the size of a workspace is asked for, and no others?
. "$(dirname "$0")/common.sh"

said() { "$@" || { echo "FAILED: $*" >&2; exit 1; }; }
launched=$(said "$1")
word() { printf ' %016x' "$1"; }
# Rows, padded; strides of o and of the LSE; dims; heads; and of the scale, .171875, the bits.
odd=$(sed '1,/^odd gradients$/d' <<<"$launched")
for kernel in prepare_sm90 backward_sm90 finish_sm90 backward_preprocess finish_dq; do
    parameters=$(grep -m 1 -- "^launch .*$kernel" <<<"$odd") || { printf 'FAILED: no %s in:\n%s\n' "$kernel" "$odd" >&2; exit 1; }
    expect "$parameters" "$(word 1152)" "$(word 150016)$(word 376)$(word 72)" "$(word 2016)$(word 1)$(word 400)" "$(word 64)" "$(word 5)" 3e300000
done

# A handle asks whether there is code. Questions load nothing, but one about a decode whether its clusters fit. The size of a workspace
# loads what its call launches, and launches nothing; the call then loads nothing, but where its tensors lie so that another kernel
# takes them.
awk '
    function fail(text) { print "FAILED: " text " (" at ")"; bad = 1; exit }
    BEGIN { at = "create" }
    /^(questions|size|call): / { at = $0; next }
    /^odd gradients$/ { at = $0; next }
    /^load / {
        loads++
        if (at == "create" && $2 !~ /probe/) fail("loaded by a handle: " $2)
        if (at ~ /^questions: / && $2 !~ /forward_(mma|latent)/) fail("loaded by a question: " $2)
        if (at ~ /^call: /) fail("loaded by a call: " $2)
        if (at ~ /^size: /) fresh[$2] = at
        loaded[$2] = 1
    }
    /^launch / {
        sub(":", "", $2)
        if (at !~ /^call: |^odd/) fail("launched by a question: " $2)
        if ($2 != "memset" && !loaded[$2]) fail("not loaded: " $2)
        launches++
        called[$2] = 1
    }
    END {
        if (bad) exit 1
        for (kernel in fresh) if (!called[kernel]) { print "FAILED: loaded and not called: " kernel " (" fresh[kernel] ")"; exit 1 }
        if (loads < 20 || launches < 30) { print "FAILED: " loads " loads, " launches " launches"; exit 1 }
    }' <<<"$launched" >&2

# Where there is no memory for a kernel's code, the answer is that of the call.
expect "$(FAKE_FAULT=load said "$1" append)" "FA_OUT_OF_MEMORY: append_rows: out of memory: 0"

# Where a block may have less shared memory, a multiprocessor has no more than that GPU's: 100 and 164 of Hopper's 228 KB.
[ -z "$(grep '^carveout' <<<"$launched")" ] || { echo "FAILED: a carveout without FLASHATTN_MAX_SHARED" >&2; exit 1; }
for limit in 99:43 163:71; do
    limited=$(FLASHATTN_MAX_SHARED=${limit%:*} said "$1" gradients)
    loads=$(grep -c '^load .*backward' <<<"$limited" || true) carveouts=$(grep -cx "carveout ${limit#*:}" <<<"$limited" || true)
    [ "$loads" -gt 0 ] && [ "$carveouts" -ge "$loads" ] || { printf 'FAILED: with %s:\n%s\n' "$limit" "$limited" >&2; exit 1; }
done

# Where they are compiled, the log says so.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export FAKE_PTX=1 FLASHATTN_LOG=info FLASHATTN_LOG_FILE=$log
said "$1" gradients >/dev/null
expect "$(cat "$log")" "kernel backward_sm90 and those of its unit were compiled from PTX for sm_90, 0.1 s"
