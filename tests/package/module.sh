# A module built alone, against the installed library: that library loads it.
. "$(dirname "$0")/common.sh"

cmake=$1 generator=$2
alone() { # alone LOG OPTION…
    local log=$1
    shift
    rm -rf "$scratch/build"
    "$cmake" -G "$generator" -S "$SOURCE" -B "$scratch/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$PREFIX" "$@" >"$log" 2>&1
}
! alone "$scratch/log" -DFA_MODULE=vulkan || fail "FA_MODULE=vulkan is taken"
grep -q 'FA_MODULE is "vulkan": expected cuda, hip or nothing' "$scratch/log" || { cat "$scratch/log"; fail "FA_MODULE=vulkan: no such sentence"; }
command -v clang++-19 >/dev/null && command -v ld.lld-19 >/dev/null || exit 77
for name in CMAKE_HIP_ARCHITECTURES GPU_TARGETS AMDGPU_TARGETS; do
    alone "$scratch/log" -DFA_MODULE=hip "-D$name=gfx1100;gfx11-generic" || { cat "$scratch/log"; fail "$name"; }
    grep -q " for gfx1100;gfx11-generic$" "$scratch/log" || { cat "$scratch/log"; fail "$name is not honoured"; }
done
! alone "$scratch/log" -DFA_MODULE=hip -DGPU_TARGETS=gfx1 || fail "GPU_TARGETS=gfx1 is taken"
grep -q "GPU_TARGETS has gfx1, for which" "$scratch/log" || { cat "$scratch/log"; fail "GPU_TARGETS=gfx1: no such sentence"; }
alone "$scratch/log" -DFA_MODULE=hip -DFA_HIP_ARCHITECTURES=gfx1030 -DCMAKE_INSTALL_PREFIX="$scratch/hip" || { cat "$scratch/log"; fail "configure"; }
"$cmake" --build "$scratch/build" >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "build"; }
"$cmake" --install "$scratch/build" >/dev/null
files=$(cd "$scratch/hip" && find . -type f)
[ "$(basename "$files")" = libflashattn-hip.so ] || fail "installed: $files"
# Without a GPU the module is still loaded, and its answer is neither "not installed" nor "of another version".
cat >"$scratch/status.c" <<'END'
#include <flashattn.h>
#include <stdio.h>
int main(void) {
    char why[FA_TEXT_MAX];
    const fa_status_t status = fa_backend_status(FA_BACKEND_HIP, why, sizeof why);
    printf("%s: %s\n", fa_status_name(status), why);
    return status == FA_BACKEND_MISSING;
}
END
"$CC" "$scratch/status.c" $(pkg-config --cflags --libs flashattn) -Wl,-rpath,"$LIBDIR" -o "$scratch/status"
FLASHATTN_BACKEND_DIR=$(dirname "$scratch/hip/$files") "$scratch/status" >"$scratch/why" || fail "the module is not found: $(cat "$scratch/why")"
! grep "refuses to serve" "$scratch/why" || fail "the library and its module do not fit"
