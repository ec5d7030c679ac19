# Sourced by the tests of this folder: they know the moved tree by $PREFIX and $LIBDIR, the sources by $SOURCE.
set -euo pipefail

export PKG_CONFIG_PATH="$LIBDIR/pkgconfig"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# expect_solution PROGRAM…: the classic exercise has one right answer.
expect_solution() {
    local answer
    answer=$("$@") || fail "$* exits with $?"
    [ "$answer" = $'2.39 2.89 3.50 4.00\n2.50 3.00 3.50 4.00' ] || fail "$* prints: $answer"
}

# expect_minimal PROGRAM…: eight lines, whose first row attends to one key and so is v itself.
expect_minimal() {
    local answer
    answer=$("$@") || fail "$* exits with $?"
    [ "$(head -2 <<<"$answer")" = $'row 0 head 0: 0.0000 0.1250\nrow 0 head 1: 1.0000 1.1250' ] || fail "$* prints: $answer"
    [ "$(wc -l <<<"$answer")" = 8 ] || fail "$* prints: $answer"
}

# needs FILE: the shared libraries that it asks the loader for.
needs() { objdump -p "$1" | awk '$1 == "NEEDED" {print $2}'; }
