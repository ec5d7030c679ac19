# What lies in the moved tree, and that its parts find each other.
. "$(dirname "$0")/common.sh"

version=$1
for file in include/flashattn.h include/flashattn.hpp share/doc/flashattn/LICENSE; do
    [ -s "$PREFIX/$file" ] || fail "$file is missing"
done
for file in libflashattn.a libflashattn-static.a libflashattn.so.0 pkgconfig/flashattn.pc pkgconfig/flashattn-static.pc \
    cmake/flashattn/flashattnConfig.cmake; do
    [ -s "$LIBDIR/$file" ] || fail "$file is missing"
done
[ "$(readlink "$LIBDIR/libflashattn.so")" = libflashattn.so.0 ] || fail "libflashattn.so is not a link to libflashattn.so.0"
[ "$(pkg-config --modversion flashattn)" = "$version" ] || fail "pkg-config gives another version than $version"
objdump -p "$LIBDIR/libflashattn.so.0" | grep -q "SONAME *libflashattn.so.0$" || fail "wrong SONAME"
! needs "$LIBDIR/libflashattn.so.0" | grep -E 'stdc|cuda|hip|amd' || fail "the library asks for more than C"

# Manual pages of functions, wherever there is a Python to write them.
! command -v python3 >/dev/null || for page in flashattn fa_forward fa_attention_desc_t flashattn_constants; do
    [ -s "$PREFIX/share/man/man3/$page.3" ] || fail "the manual page $page(3) is missing"
done

if [ -e "$PREFIX/bin/flashattn" ]; then
    [ -s "$PREFIX/share/man/man1/flashattn.1" ] || fail "the manual page is missing"
    "$PREFIX/bin/flashattn" info >"$scratch/info" || fail "flashattn info exits with $?"
    grep -qF "$version" "$scratch/info" || fail "flashattn info does not name version $version: $(cat "$scratch/info")"
fi
