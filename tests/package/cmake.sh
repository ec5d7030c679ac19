# find_package(flashattn) serves the installed examples, which are a project of their own, with the shared and with the static library.
. "$(dirname "$0")/common.sh"

cmake=$1 generator=$2
# Even in a project that has C++, the C programs are linked as C.
echo "enable_language(CXX)" >"$scratch/cxx.cmake"
"$cmake" -G "$generator" -S "$PREFIX/share/doc/flashattn/examples" -B "$scratch/build" -DCMAKE_PREFIX_PATH="$PREFIX" \
    -DCMAKE_PROJECT_INCLUDE="$scratch/cxx.cmake" -DCMAKE_EXE_LINKER_FLAGS=-Wl,--no-as-needed >"$scratch/log" 2>&1 ||
    { cat "$scratch/log"; fail "configure"; }
"$cmake" --build "$scratch/build" >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "build"; }
for kind in "" _static; do
    expect_minimal "$scratch/build/minimal$kind"
    expect_solution "$scratch/build/solve$kind"
done
needs "$scratch/build/minimal" | grep -qx libflashattn.so.0 || fail "the shared example does not use the shared library"
expect_minimal "$scratch/build/minimal_cpp"
"${cmake%cmake}ctest" --test-dir "$scratch/build" >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "an example's own test"; }
programs=("$SOURCE"/docs/{tutorial,guides}/*.c)  # all of them are installed, too
grep -q "tests passed, 0 tests failed out of $((8 + ${#programs[@]}))" "$scratch/log" || { cat "$scratch/log"; fail "not all examples were run"; }
for library in libflashattn libstdc++; do
    ! needs "$scratch/build/minimal_static" | grep -qF "$library" || fail "the static example asks for $library"
done

# A distribution may ship one library without the other; with neither, the package is not there.
cat >"$scratch/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(one_kind LANGUAGES C)
find_package(flashattn)
foreach(target flashattn::flashattn flashattn::flashattn_static roc::flashattn roc::flashattn_static)
  if(TARGET ${target})
    message(STATUS "has ${target}")
  endif()
endforeach()
message(STATUS "found: ${flashattn_FOUND}")
CMAKE
# expect_targets PATTERN LINE…: without the files that the pattern names, configuring says these lines.
expect_targets() {
    local pattern=$1 said
    shift
    rm -rf "$scratch/prefix" "$scratch/one"
    cp -r "$PREFIX" "$scratch/prefix"
    find "$scratch/prefix" -name "$pattern" -delete
    "$cmake" -G "$generator" -S "$scratch" -B "$scratch/one" -DCMAKE_PREFIX_PATH="$scratch/prefix" >"$scratch/log" 2>&1 ||
        { cat "$scratch/log"; fail "configure without $pattern"; }
    said=$(grep -E '^-- (has|found)' "$scratch/log")
    [ "$said" = "$(printf -- '-- %s\n' "$@")" ] || fail "without $pattern: $said"
}
expect_targets 'no such file' "has flashattn::flashattn" "has flashattn::flashattn_static" "has roc::flashattn" "has roc::flashattn_static" "found: 1"
expect_targets libflashattn.a "has flashattn::flashattn" "has roc::flashattn" "found: 1"
expect_targets 'libflashattn.so*' "has flashattn::flashattn_static" "has roc::flashattn_static" "found: 1"
expect_targets 'libflashattn.*' "found: 0"

# A library's name in a target's interface would be the project's own target of that name, where there is one.
mkdir "$scratch/names"
cat >"$scratch/names/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.22)
project(names LANGUAGES C)
find_package(flashattn REQUIRED)
foreach(name m dl rt gomp pthread omp c)
  add_executable(\${name} "$SOURCE/examples/minimal.c")
  target_link_libraries(\${name} PRIVATE flashattn::flashattn_static)
endforeach()
CMAKE
"$cmake" -G "$generator" -S "$scratch/names" -B "$scratch/names/build" -DCMAKE_PREFIX_PATH="$PREFIX" >"$scratch/log" 2>&1 &&
    "$cmake" --build "$scratch/names/build" >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "targets that are called as libraries"; }
expect_minimal "$scratch/names/build/m"

# The sources as a folder of a project: the library alone, by the same names, none of its tests and tools, and no name of a target beside
# it.
mkdir "$scratch/part"
cat >"$scratch/part/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.22)
project(whole LANGUAGES C CXX)
add_subdirectory("$SOURCE" flashattn)
foreach(target flashattn::flashattn flashattn::flashattn_static flashattn_cli)
  if(TARGET \${target})
    get_target_property(links \${target} LINK_LIBRARIES)
    message(STATUS "has \${target}: \${links}")
  endif()
endforeach()
CMAKE
"$cmake" -G "$generator" -S "$scratch/part" -B "$scratch/part/build" >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "configure a whole"; }
[ "$(sed -nE 's/^-- has ([^;]*): (-l[a-z]+;|[/][^;]*;)*(-l[a-z]+|[/][^;]*)$/\1/p' "$scratch/log")" = $'flashattn::flashattn\nflashattn::flashattn_static' ] ||
    { cat "$scratch/log"; fail "targets of a part, and what they link"; }
