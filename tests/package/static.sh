# A plain C program with the library inside: no libflashattn.so, no libstdc++ at run time. Beside the shared library, which a linker
# prefers, and without it, as on a system that ships only the static one.
. "$(dirname "$0")/common.sh"

# expect_inside PACKAGE OPTION…: the examples hold the library.
expect_inside() {
    local flags example library
    read -ra flags <<<"$(pkg-config --cflags --libs "$@")"
    [[ " ${flags[*]} " == *" -DFA_STATIC "* ]] || fail "no -DFA_STATIC in: ${flags[*]}"
    for example in minimal solve; do
        "$CC" -std=c99 -Wall -Wextra -pedantic -Werror "$SOURCE/examples/$example.c" -o "$scratch/$example" "${flags[@]}"
        for library in libflashattn libstdc++; do
            ! needs "$scratch/$example" | grep -qF "$library" || fail "$example by $* asks for $library"
        done
    done
    expect_minimal "$scratch/minimal"
    expect_solution "$scratch/solve"
}
expect_inside flashattn-static
expect_inside --static flashattn-static
expect_inside flashattn-static "flashattn-static = $(pkg-config --modversion flashattn)"

# What --static is for: a program that needs no library at all. Not every compiler's OpenMP can be in one.
read -ra flags <<<"$(pkg-config --static --cflags --libs flashattn)"
if ! grep -q '\.so' <<<"${flags[*]}"; then
    "$CC" -static "$SOURCE/examples/minimal.c" -o "$scratch/minimal" "${flags[@]}" 2>"$scratch/log" || { cat "$scratch/log"; fail "cc -static"; }
    [ -z "$(needs "$scratch/minimal")" ] || fail "a static program asks for $(needs "$scratch/minimal")"
    expect_minimal "$scratch/minimal"
fi

cp -r "$PREFIX" "$scratch/prefix"
libdir=$scratch/prefix${LIBDIR#"$PREFIX"}
rm "$libdir"/libflashattn.so*
export PKG_CONFIG_PATH=$libdir/pkgconfig
expect_inside flashattn-static
expect_inside --static flashattn
