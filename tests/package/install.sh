# Installs into one folder and moves everything to another, which must hold no trace of the first.
. "$(dirname "$0")/common.sh"

cmake=$1 build=$2 tool=${3-}
first=$PREFIX.first
rm -rf "$first" "$PREFIX"
"$cmake" --install "$build" --prefix "$first" >/dev/null
mv "$first" "$PREFIX"

traces=$(grep -rlF "$first" "$PREFIX" || true)
[ -z "$traces" ] || fail "the first prefix is named in $traces"

# The path of the build folder would be cut out of the tool, but its length would stay: the same sources would give another file elsewhere.
[ -z "$tool" ] || ! objdump -p "$tool" | grep -E 'R(UN)?PATH.*/.*/' | grep -F "$build" || fail "the tool is linked by the build folder's name"
