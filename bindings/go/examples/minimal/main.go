// Causal attention, two heads over four positions: the same numbers as examples/minimal.c.
package main

import (
	"fmt"
	"os"

	flashattn "github.com/libflashattn/libflashattn/bindings/go"
)

const (
	rows  = 4
	heads = 2
	dim   = 8
)

func run() error {
	var q, k, v, o [rows * heads * dim]float32
	for i := range q {
		q[i], k[i], v[i] = float32(i%7)/4, float32(i%5)/4, float32(i)/8
	}
	handle, err := flashattn.New(flashattn.Auto)
	if err != nil {
		return err
	}
	defer handle.Close()

	attention := flashattn.Attention{Batch: 1, HeadsQ: heads, SeqlenQ: rows, SeqlenK: rows, DimQK: dim}
	attention.Causal, attention.Alignment = true, flashattn.AlignTopLeft
	call := &flashattn.Forward{Q: flashattn.Of(q[:]), K: flashattn.Of(k[:]), V: flashattn.Of(v[:]), O: flashattn.Of(o[:])}
	if err := handle.Forward(&attention, call); err != nil {
		return err
	}
	for i := 0; i < len(o); i += dim {
		fmt.Printf("row %d head %d: %.4f %.4f\n", i/dim/heads, i/dim%heads, o[i], o[i+1])
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
