package flashattn_test

import (
	"fmt"
	"log"
	"math"

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

func Example_packed() {
	h, err := flashattn.New(flashattn.CPU)
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close()
	// Sequences of one row and of two, one after the other; with q of 0 each row is the mean of its sequence.
	a := &flashattn.Attention{Batch: 2, HeadsQ: 1, TotalQ: 3, TotalK: 3, SeqlenQ: 2, SeqlenK: 2, DimQK: 1}
	q, v, o, starts := make([]float32, 3), []float32{1, 3, 5}, make([]float32, 3), []int32{0, 1, 3}
	x := &flashattn.Forward{Q: flashattn.Of(q), K: flashattn.Of(q), V: flashattn.Of(v), O: flashattn.Of(o), CuSeqlensQ: starts, CuSeqlensK: starts}
	if err := h.Forward(a, x); err != nil {
		log.Fatal(err)
	}
	fmt.Println(o)
	// Output: [1 4 4]
}

func ExampleHandle_Backward() {
	h, err := flashattn.New(flashattn.CPU)
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close()
	a := &flashattn.Attention{Batch: 1, HeadsQ: 1, SeqlenQ: 2, SeqlenK: 2, DimQK: 1, Causal: true, Alignment: flashattn.AlignTopLeft}
	q, v, o, lse := make([]float32, 2), []float32{1, 3}, make([]float32, 2), make([]float32, 2)
	x := &flashattn.Forward{Q: flashattn.Of(q), K: flashattn.Of(q), V: flashattn.Of(v), O: flashattn.Of(o), LSE: lse}
	if err := h.Forward(a, x); err != nil {
		log.Fatal(err)
	}
	// The first row gives all of its gradient to the first value, the second one half to each.
	dout, dv := []float32{2, 4}, make([]float32, 2)
	if err := h.Backward(a, x, &flashattn.Backward{Dout: flashattn.Of(dout), Dv: flashattn.Of(dv)}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(dv)
	// Output: [4 2]
}

func ExampleHandle_Merge() {
	h, err := flashattn.New(flashattn.CPU)
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close()
	// Two parts of the keys, of which the second has three times the weight of the first.
	a := &flashattn.Attention{Batch: 1, HeadsQ: 1, SeqlenQ: 1, DimQK: 1}
	parts, lses, o := []float32{2, 6}, []float32{0, float32(math.Log(3))}, make([]float32, 1)
	if err := h.Merge(a, &flashattn.Merge{Parts: 2, OParts: parts, LSEParts: lses, O: flashattn.Of(o)}); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.3f\n", o[0])
	// Output: 5.000
}

func ExampleHandle_Rotary() {
	h, err := flashattn.New(flashattn.CPU)
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close()
	// One pair of dims: at position 0 it stays, at position 1 it turns by a right angle.
	a := &flashattn.Attention{Batch: 1, HeadsQ: 1, SeqlenQ: 2, DimQK: 2}
	x := []float32{1, 2, 3, 4}
	err = h.Rotary(a, &flashattn.Rotary{X: flashattn.Of(x), Out: flashattn.Of(x), Cos: []float32{1, 0}, Sin: []float32{0, 1},
		MaxPosition: 2, RotaryDim: 2})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(x)
	// Output: [1 2 -4 3]
}

// A transposed matrix in another type.
func ExampleHandle_Convert() {
	h, err := flashattn.New(flashattn.CPU)
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close()
	x, out := []float32{1, 2, 3, 4, 5, 6}, make([]flashattn.BF16, 6) // 3 rows of 2
	err = h.Convert(&flashattn.Conversion{X: flashattn.Of(x), Out: flashattn.Of(out), Size: [4]int64{1, 3, 2, 1},
		XStride: [4]int64{0, 2, 1, 1}, OutStride: [4]int64{0, 1, 3, 1}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%x\n", out)
	// Output: [3f80 4040 40a0 4000 4080 40c0]
}

func ExampleDevices() {
	devices, err := flashattn.Devices(flashattn.CPU)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(devices), devices[0].ComputeUnits > 0)
	// Output: 1 true
}
