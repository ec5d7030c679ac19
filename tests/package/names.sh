# Debian's list has the library's symbols, each with the version node that it came in. That versions agree is tools/check_release's.
. "$(dirname "$0")/common.sh"

debian=$SOURCE/packaging/debian

compare() { # LIBRARY PACKAGE
    local exported listed
    exported=$(objdump -T "$LIBDIR/$1.so.0" | awk '$3 != "*UND*" && NF >= 6 && /FLASHATTN_/ {print $NF "@" $(NF - 1)}' | tr -d '()' | LC_ALL=C sort)
    listed=$(sed -n 's/^ \([^ ]*\) .*/\1/p' "$debian/$2.symbols" | LC_ALL=C sort)
    [ -n "$exported" ] || fail "no exported symbols found in $1"
    diff <(echo "$listed") <(echo "$exported") || fail "Debian's list of symbols is not what $1 exports"
}
compare libflashattn libflashattn0
[ ! -e "$LIBDIR/libflashattn-cp.so.0" ] || compare libflashattn-cp libflashattn-cp0
