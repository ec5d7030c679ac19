# Vets the package, runs its tests and examples with the checks of pointer passing, and its example program as that of a module of its own,
# which asks for the package as docs/guides/languages.md says. Under the race detector, unless FA_QUICK is set: all of Go's own packages are
# compiled for it.
. "$(dirname "$0")/common.sh"
skip_without go

export GOCACHE=$work/go GOPROXY=off GOFLAGS=-mod=mod
# Up to Go 1.20 the thorough checks are a switch of running programs, which later ones refuse: there it is one of the compiler's.
case $(go env GOVERSION) in
    go1.19* | go1.20*) export GODEBUG=cgocheck=2 ;;
    *) export GOEXPERIMENT=cgocheck2 ;;
esac
cd "$SOURCE/bindings/go"
unformatted=$(gofmt -l .)
[ -z "$unformatted" ] || { echo "not as gofmt has it: $unformatted"; exit 1; }
race=-race
[ -z "${FA_QUICK-}" ] || race=
go vet $race ./...  # with it, or those packages would be compiled twice
go test $race ./...
rm -rf "$work/newcomer_go"
mkdir "$work/newcomer_go"
cp examples/minimal/main.go "$work/newcomer_go"
home=$(sed -n 's/^module //p' go.mod)
cd "$work/newcomer_go"
go mod init example.org/newcomer
go mod edit -require "$(grep -oE "$home@v[0-9.]+" "$SOURCE/docs/guides/languages.md")" -replace "$home=$SOURCE/bindings/go"
go run $race . >"$work/go.txt"
same_numbers "$work/go.txt"
