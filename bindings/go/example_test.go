package flashattn_test

import (
	"fmt"
	"log"

	flashattn "github.com/libflashattn/libflashattn/bindings/go"
)

func Example() {
	h, err := flashattn.New(flashattn.Auto)
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close()
	a := &flashattn.Attention{Batch: 1, HeadsQ: 1, SeqlenQ: 2, SeqlenK: 2, DimQK: 2, Causal: true, Alignment: flashattn.AlignTopLeft}
	q, v, o := []float32{0, 0, 0, 0}, []float32{1, 2, 3, 4}, make([]float32, 4) // [batch][row][head][dim]
	if err := h.Forward(a, &flashattn.Forward{Q: flashattn.Of(q), K: flashattn.Of(q), V: flashattn.Of(v), O: flashattn.Of(o)}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(o)
	// Output: [1 2 2 3]
}

func ExampleHandle_AppendKV() {
	h, err := flashattn.New(flashattn.CPU)
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close()
	// Two slots a page; the sequence has pages 1 and 0.
	a := &flashattn.Attention{Batch: 1, HeadsQ: 1, SeqlenQ: 1, SeqlenK: 4, DimQK: 1, PageSize: 2, NumPages: 2}
	k, v, table, used := make([]float32, 4), make([]float32, 4), []int32{1, 0}, []int32{0}
	for token := 1; token <= 3; token++ {
		kv := flashattn.Of([]float32{float32(token)})
		err := h.AppendKV(a, &flashattn.AppendKV{KNew: kv, VNew: kv, SeqlenNew: 1, K: flashattn.Of(k), V: flashattn.Of(v),
			PageTable: table, SequsedK: used})
		if err != nil {
			log.Fatal(err)
		}
		used[0]++
	}
	fmt.Println(v)
	// Output: [3 0 1 2]
}

func ExampleError() {
	h, err := flashattn.New(flashattn.CPU)
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close()
	x := flashattn.Of(make([]float32, 4))
	a := &flashattn.Attention{Batch: 1, HeadsQ: 1, SeqlenQ: 2, SeqlenK: 2, DimQK: 2, Causal: true}
	fmt.Println(h.Forward(a, &flashattn.Forward{Q: x, K: x, V: x, O: x}))
	// Output: FA_INVALID_ARGUMENT: alignment is not set: expected FA_ALIGN_TOP_LEFT, _BOTTOM_RIGHT or _EXPLICIT with FA_CAUSAL
}
