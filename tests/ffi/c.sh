# The reference of the other languages.
. "$(dirname "$0")/common.sh"

# shellcheck disable=SC2046
"$CC" "$SOURCE/examples/minimal.c" -o "$work/minimal" $(pkg-config --cflags --libs flashattn)
"$work/minimal" >"$reference"
[ "$(wc -l <"$reference")" = 8 ]
