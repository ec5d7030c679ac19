# What the packages say of the library is so: their version, and, in Debian's list, its symbols with the version each came in.
. "$(dirname "$0")/common.sh"

version=$1 debian=$SOURCE/packaging/debian
grep -qE "^Version: +$version$" "$SOURCE/packaging/rpm/flashattn.spec" || fail "flashattn.spec is of another version than $version"
head -1 "$debian/changelog" | grep -qF "libflashattn ($version-" || fail "Debian's changelog begins with another version than $version"

exported=$(objdump -T "$LIBDIR/libflashattn.so.0" | awk '$3 != "*UND*" && NF >= 6 && /FLASHATTN_/ {print $NF "@" $(NF - 1)}' | tr -d '()' | LC_ALL=C sort)
listed=$(sed -n 's/^ \([^ ]*\) .*/\1/p' "$debian/libflashattn0.symbols" | LC_ALL=C sort)
[ -n "$exported" ] || fail "no exported symbols found"
diff <(echo "$listed") <(echo "$exported") || fail "Debian's list of symbols is not what the library exports"
