# pkg-config builds and runs the C examples with the shared library, in every dialect the header promises.
. "$(dirname "$0")/common.sh"

export LD_LIBRARY_PATH=$LIBDIR
read -ra flags <<<"$(pkg-config --cflags --libs flashattn)"
for example in minimal solve; do
    "$CC" -std=c99 -Wall -Wextra -pedantic -Werror "$SOURCE/examples/$example.c" -o "$scratch/$example" "${flags[@]}"
    needs "$scratch/$example" | grep -qx libflashattn.so.0 || fail "$example does not ask for libflashattn.so.0"
done
expect_minimal "$scratch/minimal"
expect_solution "$scratch/solve"

# libflashattn-cp is a shared library alone, and brings libflashattn: whoever asks for it has one libflashattn, in any company.
[ -e "$LIBDIR/libflashattn-cp.so" ] || exit 0
cat >"$scratch/one_rank.c" <<'C'
#include <flashattn_cp.h>
#include <stdio.h>
static int failed(const char* what) { return fprintf(stderr, "%s\n", what), 1; }
int main(void) {
    fa_handle_t handle;
    fa_cp_t cp;
    fa_cp_transport_t transport = FA_CP_TRANSPORT_INIT;
    fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
    transport.ranks = 1;
    info.transport = &transport;
    if (fa_create(&handle, NULL) != FA_OK) return failed(fa_last_error(NULL));
    if (fa_cp_create(&cp, handle, &info) != FA_OK) return failed(fa_cp_last_error(NULL));
    if (fa_cp_destroy(cp) != FA_OK) return failed("fa_cp_destroy");
    return fa_destroy(handle) == FA_OK ? 0 : failed("fa_destroy");
}
C
for packages in flashattn-cp "--static flashattn-cp" "flashattn flashattn-cp" "flashattn-cp flashattn-static"; do
    # shellcheck disable=SC2086
    read -ra flags <<<"$(pkg-config --cflags --libs $packages)"
    "$CC" -std=c99 -Wall -Wextra -pedantic -Werror "$scratch/one_rank.c" -o "$scratch/one_rank" "${flags[@]}"
    needs "$scratch/one_rank" | grep -qx libflashattn-cp.so.0 || fail "a program by $packages does not ask for libflashattn-cp.so.0"
    "$scratch/one_rank" || fail "a program by $packages exits with $?"
done
