# -DFA_BUNDLE=cuda: the library, shared and static, holds the CUDA backend. Built the quick way: one architecture's PTX stands for all,
# of one for which the matrix kernels are empty.
. "$(dirname "$0")/common.sh"

cmake=$1 generator=$2 nvcc=$3 cudart=$4 symbols=$5
build=$scratch/build prefix=$scratch/prefix
"$cmake" -G "$generator" -S "$SOURCE" -B "$build" -DCMAKE_BUILD_TYPE=Debug -DFA_BUNDLE=cuda -DFA_TESTS=OFF -DFA_CLI=OFF \
    -DCMAKE_CUDA_COMPILER="$nvcc" -DFA_CUDA_ARCHITECTURES=75-virtual >"$scratch/log" 2>&1 &&
    "$cmake" --build "$build" >"$scratch/log" 2>&1 && "$cmake" --install "$build" --prefix "$prefix" >"$scratch/log" 2>&1 ||
    { cat "$scratch/log"; fail "the bundle cannot be built"; }
libdir=$(dirname "$(find "$prefix" -name libflashattn.a)")

[ -z "$(find "$prefix" -name '*-cuda.so')" ] || fail "there is a module beside the bundle"
[ "$(nm -D --defined-only "$libdir/libflashattn.so" | awk '$2 != "A" {print $3}' | LC_ALL=C sort)" = "$(cat "$symbols")" ] ||
    fail "the bundle exports other symbols than the library"
! needs "$libdir/libflashattn.so" | grep -E 'stdc|cuda' || fail "the bundle asks for more than C"

# A module that is in the way is not even looked at: anybody may write to it.
mkdir "$scratch/modules"
touch "$scratch/modules/libflashattn-cuda.so"
chmod 777 "$scratch/modules"
export FLASHATTN_BACKEND_DIR=$scratch/modules
expect_built_in() {
    local said
    said=$("$@") || fail "$* exits with $?"
    grep -q 'cuda.*(built in)' <<<"$said" || fail "$* does not find CUDA built in: $said"
}
if [ -e "$PREFIX/bin/flashattn" ]; then
    cp -r "$PREFIX" "$scratch/tool"
    cp "$libdir/libflashattn.so.0" "$scratch/tool${LIBDIR#"$PREFIX"}/"
    expect_built_in "$scratch/tool/bin/flashattn" info
fi

cat >"$scratch/status.c" <<'C'
#include <flashattn.h>
#include <stdio.h>
int main(void) {
    char text[512];
    fa_backend_status(FA_BACKEND_CUDA, text, sizeof text);
    printf("cuda: %s\n", text);
    return 0;
}
C
export PKG_CONFIG_PATH=$libdir/pkgconfig
rm "$libdir"/libflashattn.so*
read -ra flags <<<"$(pkg-config --cflags --libs flashattn-static)"
"$CC" "$scratch/status.c" -o "$scratch/status" "${flags[@]}" "-L$cudart" || fail "the static bundle does not link"
expect_built_in "$scratch/status"
! needs "$scratch/status" | grep -E 'stdc|cuda|flashattn' || fail "a program with the static bundle asks for more than C"
