#!/bin/sh
# A shared library exports the functions of its header, no more and no less, under the version they came with; and it needs no
# C++ library. Usage: exports.sh NM READELF LIBRARY HEADER SYMBOLS SONAME
set -eu
nm=$1 readelf=$2 library=$3 header=$4 symbols=$5 soname=$6
exported=$("$nm" -D --defined-only "$library" | awk '$2 != "A" {print $3}' | LC_ALL=C sort)
if [ "$exported" != "$(cat "$symbols")" ]; then
    echo "exported symbols differ from $symbols:"
    echo "$exported" | diff "$symbols" - || true
    exit 1
fi
declared=$(sed -n 's/^FA_API [^(]*\(fa_[a-z0-9_]*\)(.*/\1/p' "$header" | LC_ALL=C sort)
listed=$(sed 's/@.*//' "$symbols")
if [ "$declared" != "$listed" ]; then
    echo "either declared in $header or listed in $symbols, not both:"
    printf '%s\n' "$declared" "$listed" | sort | uniq -u
    exit 1
fi
if "$readelf" -d "$library" | grep -E 'NEEDED.*(libstdc\+\+|libgcc_s|libc\+\+)'; then exit 1; fi
"$readelf" -d "$library" | grep -qF "Library soname: [$soname]"
