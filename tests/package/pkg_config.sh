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
