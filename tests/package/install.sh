# Installs into one folder and moves everything to another, which must hold no trace of the first.
. "$(dirname "$0")/common.sh"

cmake=$1 build=$2
first=$PREFIX.first
rm -rf "$first" "$PREFIX"
"$cmake" --install "$build" --prefix "$first" >/dev/null
mv "$first" "$PREFIX"

traces=$(grep -rlF "$first" "$PREFIX" || true)
[ -z "$traces" ] || fail "the first prefix is named in $traces"
