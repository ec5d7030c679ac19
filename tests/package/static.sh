# A plain C program with the library inside: no libflashattn.so, no libstdc++ at run time. The shared library is taken away, as on
# a system that ships only the static one.
. "$(dirname "$0")/common.sh"

cp -r "$PREFIX" "$scratch/prefix"
libdir=$scratch/prefix${LIBDIR#"$PREFIX"}
rm "$libdir"/libflashattn.so*
export PKG_CONFIG_PATH=$libdir/pkgconfig

read -ra flags <<<"$(pkg-config --static --cflags --libs flashattn)"
[[ " ${flags[*]} " == *" -DFA_STATIC "* ]] || fail "no -DFA_STATIC in: ${flags[*]}"
for example in minimal solve; do
    "$CC" -std=c99 -Wall -Wextra -pedantic -Werror "$SOURCE/examples/$example.c" -o "$scratch/$example" "${flags[@]}"
    for library in libflashattn libstdc++; do
        ! needs "$scratch/$example" | grep -qF "$library" || fail "$example asks for $library"
    done
done
expect_minimal "$scratch/minimal"
expect_solution "$scratch/solve"
