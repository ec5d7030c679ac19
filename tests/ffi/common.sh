# Sourced by the tests of this folder, which build against the moved tree of the package tests ($PREFIX, $LIBDIR).
set -euo pipefail

export PKG_CONFIG_PATH=$LIBDIR/pkgconfig LD_LIBRARY_PATH=$LIBDIR FLASHATTN_LIBRARY=$LIBDIR/libflashattn.so.0
work=$1
reference=$work/minimal.txt

# skip_without PROGRAM…
skip_without() {
    local program
    for program; do
        command -v "$program" >/dev/null || { echo "skipped: $program is not installed"; exit 77; }
    done
}

# same_numbers FILE: what examples/minimal.c printed.
same_numbers() { diff -u "$reference" "$1" && echo "the same $(wc -l <"$1") lines as C"; }
