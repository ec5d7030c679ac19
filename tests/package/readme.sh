# The commands of the README's section "Install", word for word, on a copy of the sources: a program that is built as it says runs. Root
# gets a view of the machine in which nothing is installed and nothing done outlasts the test; for anybody else, and where there is no such
# view, the installation goes to a folder and ldconfig is not tried.
. "$(dirname "$0")/common.sh"

build=$1
# fenced PAGE TITLE: the commands in the section's fences, one a line.
fenced() { sed -n "/^## $2\$/,/^## /p" "$SOURCE/$1" | awk '/^```/ {fenced = !fenced; next} fenced' | sed 's/ && /\n/g'; }

commands=$(fenced README.md Install)
for expected in 'cmake --preset' 'cmake --build' 'cmake --install' ldconfig; do
    grep -qF "$expected" <<<"$commands" || fail "the README's commands lack $expected: $commands"
done
[ "$commands" = "$(fenced docs/install.md 'From source' | grep -v apt)" ] || fail "docs/install.md has other commands than the README: $commands"
compile=$(grep -o '`cc minimal\.c [^`]*`' "$SOURCE/README.md" | tr -d '`')
[ "$(wc -l <<<"$compile")" = 1 ] && [ -n "$compile" ] || fail "the README does not say once how to build minimal.c: $compile"

# The oldest CMake that is asked for is the one that the project takes, and knows this version of presets.
oldest=$(grep -oE 'CMake [0-9.]+[0-9]' "$SOURCE/docs/install.md" | head -1 | cut -d' ' -f2)
for lists in CMakeLists.txt examples/CMakeLists.txt; do
    grep -qF "cmake_minimum_required(VERSION $oldest)" "$SOURCE/$lists" || fail "$lists takes another CMake than $oldest"
done
presets=$(sed -n 's/^ *"version": *\([0-9]*\),$/\1/p' "$SOURCE/CMakePresets.json")
first=([1]=3.19 [2]=3.20 [3]=3.21 [4]=3.23 [5]=3.24 [6]=3.25)
[ "$(printf '%s\n' "$oldest" "${first[$presets]-9}" | sort -V | tail -1)" = "$oldest" ] ||
    fail "presets of version $presets need CMake ${first[$presets]-9}, docs/install.md says $oldest"

copy=$scratch/copy
mkdir "$copy" "$scratch/bin"
tar -C "$SOURCE" --exclude='./build*' --exclude='./.*' --exclude=target -cf - . | tar -C "$copy" -xf -
# What takes minutes and shows nothing here: the tool, whose installation has a test, and compiling. An object that the build at hand has of
# the same name serves once more; others are compiled without optimisation.
sed -i '/^option(FA_CLI /s/ [^ ]*)$/ OFF)/' "$copy/CMakeLists.txt"
cat >"$scratch/bin/compile" <<COMPILE
#!/bin/bash
object=
for argument; do
    [ "\$previous" != -o ] || object=\$argument
    previous=\$argument
done
[[ "\$object" = src/*.o ]] && cp "$build/\$object" "\$object" 2>/dev/null || exec "\${@/#-O[123]/-O0}"
COMPILE
export CMAKE_C_COMPILER_LAUNCHER=$scratch/bin/compile CMAKE_CXX_COMPILER_LAUNCHER=$scratch/bin/compile
unset PKG_CONFIG_PATH LD_LIBRARY_PATH DESTDIR CFLAGS CXXFLAGS LDFLAGS
export PATH=$scratch/bin:$PATH

cat >"$scratch/bare" <<'BARE'
set -e
mount -t tmpfs none "$1"
for folder in /usr/local /etc /var/cache/ldconfig; do
    mkdir -p "$1/upper$folder" "$1/work$folder"
    mount -t overlay overlay -o "lowerdir=$folder,upperdir=$1/upper$folder,workdir=$1/work$folder" "$folder"
done
find /usr/local \( -name 'libflashattn*' -o -name 'flashattn*' \) -prune -exec rm -r {} +
shift
exec "$@"
BARE
mkdir "$scratch/view"
run=(unshare --mount bash "$scratch/bare" "$scratch/view" bash -euxc)
if "${run[@]}" true 2>/dev/null; then
    printf '#!/bin/bash\nexec "$@"\n' >"$scratch/bin/sudo"
else
    echo "there is no view of a bare machine for this user: ldconfig is not tried"
    root=$scratch/root run=(bash -euxc)
    printf '#!/bin/bash\n[ "$1" = ldconfig ] || DESTDIR=%q exec "$@"\n' "$root" >"$scratch/bin/sudo"
    export PKG_CONFIG_PATH=$root/usr/local/lib/pkgconfig LD_LIBRARY_PATH=$root/usr/local/lib
fi
chmod +x "$scratch/bin"/*

command -v ninja >/dev/null || { echo "skipped: ninja, which the presets ask for, is not installed"; exit 77; }
cd "$copy"
"${run[@]}" "$commands
    cd examples
    $compile
    ./a.out >'$scratch/answer'" >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "the README's commands"; }
expect_minimal cat "$scratch/answer"
