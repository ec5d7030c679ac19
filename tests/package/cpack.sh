# cpack's archive has the installed tree's files, and its Debian packages have them below the prefix that is compiled in.
. "$(dirname "$0")/common.sh"

cpack=$1 build=$2 prefix=$3
listed() { (cd "$1" && find . -type f -o -type l | LC_ALL=C sort); }
pack() { (cd "$build" && "$cpack" -G "$@" -B "$scratch/$1" >"$scratch/log" 2>&1) || { cat "$scratch/log"; fail "cpack -G $1"; }; }

pack TGZ
mkdir "$scratch/archive"
tar -xzf "$scratch"/TGZ/flashattn-*.tar.gz --strip-components 1 -C "$scratch/archive"
listed "$PREFIX" >"$scratch/tree"
listed "$scratch/archive" | diff "$scratch/tree" - || fail "the archive is not the tree"

command -v dpkg-deb >/dev/null || exit 0
pack DEB -D CPACK_DEBIAN_COMPRESSION_TYPE=none  # whose bytes nobody looks at
for package in "$scratch"/DEB/*.deb; do dpkg-deb -x "$package" "$scratch/root"; done
listed "$scratch/root$prefix" | diff "$scratch/tree" - || fail "the Debian packages together are not the tree"
dpkg-deb -f "$scratch"/DEB/libflashattn-dev_*.deb Depends | grep -q '^libflashattn0 (= ' || fail "the headers do not ask for the library"
