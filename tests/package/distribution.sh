# What a distribution asks for when it configures: a level of _FORTIFY_SOURCE, and folders of its own.
. "$(dirname "$0")/common.sh"

cmake=$1 generator=$2
configure() {
    rm -rf "$scratch/build"
    "$cmake" -G "$generator" -S "$SOURCE" -B "$scratch/build" -DCMAKE_BUILD_TYPE=Release -DFA_TESTS=OFF -DFA_CLI=OFF "$@" \
        >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "configure with $*"; }
}

# expect_level LEVEL: that of the core. One that is chosen stays, in whatever way it was; else there is the library's own.
expect_level() {
    local compile macros
    compile=$(python3 -c 'import json, sys
print(next(unit["command"] for unit in json.load(open(sys.argv[1])) if unit["file"].endswith("/core/api.cc")))' \
        "$scratch/build/compile_commands.json")
    macros=$(cd "$scratch/build" && eval "${compile% -o *} -Werror -E -dM -x c++ /dev/null") || fail "preprocess by $compile"
    grep -qx "#define _FORTIFY_SOURCE $1" <<<"$macros" || fail "not $1 but $(grep _FORTIFY_SOURCE <<<"$macros") by $compile"
}
of_compiler=$("$CC" -O2 -E -dM -x c /dev/null | awk '$2 == "_FORTIFY_SOURCE" {print $3}')
configure
expect_level "${of_compiler:-2}"
configure -DCMAKE_CXX_FLAGS="-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3"
expect_level 3

# One folder by its full name, outside of the prefix.
lib=$scratch/one/lib64 include=$scratch/other/include
configure -DCMAKE_CXX_FLAGS_RELEASE="-O2 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3" \
    -DCMAKE_INSTALL_PREFIX="$scratch/other" -DCMAKE_INSTALL_LIBDIR="$lib"
expect_level 3
mkdir -p "$lib/pkgconfig" "$include"
cp "$scratch/build/flashattn.pc" "$lib/pkgconfig"
export PKG_CONFIG_PATH=$lib/pkgconfig
for folder in lib include; do
    found=$(realpath "$(pkg-config --variable=${folder}dir flashattn)") || fail "pkg-config's ${folder}dir is not there"
    [ "$found" = "${!folder}" ] || fail "pkg-config's ${folder}dir is $found, not ${!folder}"
done
