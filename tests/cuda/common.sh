# Sourced by the tests of this folder.
set -euo pipefail

# expect TEXT LINE…: each line is part of the text.
expect() {
    local text=$1
    shift
    for line; do
        grep -qF -- "$line" <<<"$text" || { printf 'FAILED: "%s" is not in:\n%s\n' "$line" "$text" >&2; exit 1; }
    done
}

# expect_refused STATUS SENTENCE PROBE: by name the backend gives its status and its sentence, AUTO goes on to the CPU and keeps the
# sentence.
expect_refused() {
    expect "$("$3" 2)" "create: $1: $2"
    expect "$("$3" 0)" "create: FA_OK: " "backend: 1" "passed over cuda: $2"
}
