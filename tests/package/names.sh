# What the packages say of the library is so: their version, and, in Debian's list, its symbols with the version each came in.
. "$(dirname "$0")/common.sh"

version=$1 debian=$SOURCE/packaging/debian
grep -qE "^Version: +$version$" "$SOURCE/packaging/rpm/flashattn.spec" || fail "flashattn.spec is of another version than $version"
head -1 "$debian/changelog" | grep -qF "libflashattn ($version-" || fail "Debian's changelog begins with another version than $version"

compare() { # LIBRARY PACKAGE
    local exported listed
    exported=$(objdump -T "$LIBDIR/$1.so.0" | awk '$3 != "*UND*" && NF >= 6 && /FLASHATTN_/ {print $NF "@" $(NF - 1)}' | tr -d '()' | LC_ALL=C sort)
    listed=$(sed -n 's/^ \([^ ]*\) .*/\1/p' "$debian/$2.symbols" | LC_ALL=C sort)
    [ -n "$exported" ] || fail "no exported symbols found in $1"
    diff <(echo "$listed") <(echo "$exported") || fail "Debian's list of symbols is not what $1 exports"
}
compare libflashattn libflashattn0
[ ! -e "$LIBDIR/libflashattn-cp.so.0" ] || compare libflashattn-cp libflashattn-cp0
