# The C++ header, as a program of C++ finds it, in every dialect that it promises.
. "$(dirname "$0")/common.sh"

for standard in c++17 c++20; do
    # shellcheck disable=SC2046
    "$CXX" -std=$standard -Wall -Wextra -pedantic -Werror "$SOURCE/examples/minimal.cc" -o "$work/minimal_cpp" \
        $(pkg-config --cflags --libs flashattn)
    "$work/minimal_cpp" >"$work/cpp.txt"
    same_numbers "$work/cpp.txt"
done
