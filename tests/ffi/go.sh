# Vets the package, runs its tests and examples under the race detector with the checks of pointer passing, and its example program.
. "$(dirname "$0")/common.sh"
skip_without go

export GOCACHE=$work/go GOPROXY=off GOFLAGS=-mod=mod GODEBUG=cgocheck=2
cd "$SOURCE/bindings/go"
unformatted=$(gofmt -l .)
[ -z "$unformatted" ] || { echo "not as gofmt has it: $unformatted"; exit 1; }
go vet ./...
go test -race ./...
go run -race ./examples/minimal >"$work/go.txt"
same_numbers "$work/go.txt"
