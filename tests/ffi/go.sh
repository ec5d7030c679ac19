# Vets the package, runs its tests and examples under the race detector with the checks of pointer passing, and its example program.
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
go run -race ./examples/minimal >"$work/go.txt"
same_numbers "$work/go.txt"
