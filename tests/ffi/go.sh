# Vets the package, runs its tests with the checks of pointer passing, and its example.
. "$(dirname "$0")/common.sh"
skip_without go

export GOCACHE=$work/go GOPROXY=off GOFLAGS=-mod=mod GODEBUG=cgocheck=2
cd "$SOURCE/bindings/go"
go vet ./...
go test ./...
go run ./examples/minimal >"$work/go.txt"
same_numbers "$work/go.txt"
