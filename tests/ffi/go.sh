# Vets the package, runs its tests and examples under the race detector with the checks of pointer passing, and its example program as that
# of a module of its own, which asks for the package as docs/guides/languages.md says.
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
go vet ./...
go test -race ./...
rm -rf "$work/newcomer_go"
mkdir "$work/newcomer_go"
cp examples/minimal/main.go "$work/newcomer_go"
home=$(sed -n 's/^module //p' go.mod)
cd "$work/newcomer_go"
go mod init example.org/newcomer
go mod edit -require "$(grep -oE "$home@v[0-9.]+" "$SOURCE/docs/guides/languages.md")" -replace "$home=$SOURCE/bindings/go"
go run -race . >"$work/go.txt"
same_numbers "$work/go.txt"
