# Each component installs its own files; together they are the whole tree, and none has a file of another.
. "$(dirname "$0")/common.sh"

cmake=$1 build=$2 components=(runtime dev tools doc)
listed() { (cd "$1" && find . -type f -o -type l | LC_ALL=C sort); }
for component in "${components[@]}" cp cp_dev cuda hip; do
    "$cmake" --install "$build" --prefix "$scratch/$component" --component "$component" >/dev/null
    mkdir -p "$scratch/$component"
    listed "$scratch/$component" >"$scratch/$component.list"
done
listed "$PREFIX" >"$scratch/whole"
LC_ALL=C sort "$scratch"/*.list >"$scratch/parts"
diff "$scratch/whole" "$scratch/parts" || fail "the components are not the tree"

expect() { grep -qE "$2" "$scratch/$1.list" || fail "the component $1 lacks $2"; }
expect runtime '/libflashattn\.so\.0$'
expect dev '/libflashattn\.so$'
expect dev '/flashattn\.h$'
expect dev '/flashattn\.pc$'
expect doc '/SPEC\.md$'
! grep -vE '/libflashattn\.so\.|/LICENSE$' "$scratch/runtime.list" || fail "a program needs none of these"
expect cp '/libflashattn-cp\.so\.0$'
! grep -vE '/libflashattn-cp\.so\.' "$scratch/cp.list" || fail "a program over several processes needs none of these"
expect cp_dev '/libflashattn-cp\.so$'
expect cp_dev '/flashattn_cp\.h$'
expect cp_dev '/flashattn-cp\.pc$'
if [ -e "$PREFIX/bin/flashattn" ]; then
    expect tools '/man1/flashattn\.1$'
    expect tools '/bash-completion/completions/flashattn$'
fi
