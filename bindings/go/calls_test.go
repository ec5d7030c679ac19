package flashattn

import (
	"math"
	"testing"
)

// Numbers in [-1, 1).
func random(n int, seed uint32) []float32 {
	x := make([]float32, n)
	for i := range x {
		seed = seed*1664525 + 1013904223
		x[i] = float32(seed>>8)/8388608 - 1
	}
	return x
}

// One row of attention as the textbook writes it, in double precision, over keys step elements apart.
func plainRow(q, k, v []float32, keys, step int, keep func(j int) bool) []float64 {
	o, sum := make([]float64, len(q)), 0.0
	for j := 0; j < keys; j++ {
		if !keep(j) {
			continue
		}
		score := 0.0
		for d := range q {
			score += float64(q[d]) * float64(k[j*step+d])
		}
		p := math.Exp(score / math.Sqrt(float64(len(q))))
		sum += p
		for d := range o {
			o[d] += p * float64(v[j*step+d])
		}
	}
	for d := range o {
		o[d] /= math.Max(sum, math.SmallestNonzeroFloat64)
	}
	return o
}

func all(int) bool { return true }

func near(t *testing.T, got []float32, expected []float64, within float64) {
	t.Helper()
	for i := range expected {
		if !(math.Abs(float64(got[i])-expected[i]) <= within) {
			t.Fatalf("element %d: %v, expected %v", i, got[i], expected[i])
		}
	}
}

func works(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestGroupedHeadsMasksAndOutputs(t *testing.T) {
	const batch, heads, kv, rows, keys, dim = 2, 4, 2, 3, 5, 8
	q, k, v := random(batch*rows*heads*dim, 1), random(batch*keys*kv*dim, 2), random(batch*keys*kv*dim, 3)
	mask := make([]uint8, rows*keys)
	for i := range mask {
		if i%3 != 1 {
			mask[i] = 1
		}
	}
	o, lse := make([]float32, len(q)), make([]float32, batch*heads*rows)
	scores := make([]float32, batch*heads*rows*keys)
	a := &Attention{Batch: batch, HeadsQ: heads, HeadsK: kv, SeqlenQ: rows, SeqlenK: keys, DimQK: dim,
		Window: &Window{3, -1}, Alignment: AlignBottomRight, MaskStride: [4]int64{0, 0, keys, 1},
		ScoresStage: ScoresStageProbability, ScoresStride: [4]int64{heads * rows * keys, rows * keys, keys, 1}}
	works(t, open(t, CPU).Forward(a, &Forward{Q: Of(q), K: Of(k), V: Of(v), O: Of(o), LSE: lse, Mask: mask, Scores: scores}))
	for b := 0; b < batch; b++ {
		for i := 0; i < rows; i++ {
			for h := 0; h < heads; h++ {
				at, first := ((b*rows+i)*heads+h)*dim, (b*keys*kv+h*kv/heads)*dim
				keep := func(j int) bool { return j+3 >= i+keys-rows && mask[i*keys+j] != 0 }
				near(t, o[at:at+dim], plainRow(q[at:at+dim], k[first:], v[first:], keys, kv*dim, keep), 1e-5)
				row, sum := (b*heads+h)*rows+i, float32(0)
				for _, p := range scores[row*keys : (row+1)*keys] {
					sum += p
				}
				if math.Abs(float64(sum)-1) > 1e-5 || math.IsInf(float64(lse[row]), 0) {
					t.Errorf("row %d: probabilities sum to %v, LSE is %v", row, sum, lse[row])
				}
			}
		}
	}
}

func TestTypesAndStrides(t *testing.T) {
	q, k, v := make([]BF16, 48), make([]F16, 32), make([]F16, 32)
	for i := range q {
		q[i] = 0x3f80
	}
	for i := range k {
		k[i], v[i] = 0x3c00, 0x4000 // 1, 2
	}
	o := make([]float32, 48)
	wide, shared := &[4]int64{24, 4, 12, 1}, &[4]int64{0, 4, 16, 1} // (batch, head, row, dim); one k and v for both sequences
	a := &Attention{Batch: 2, HeadsQ: 2, SeqlenQ: 3, SeqlenK: 4, DimQK: 4, QStride: wide, KStride: shared, VStride: shared, OStride: wide}
	works(t, open(t, CPU).Forward(a, &Forward{Q: Of(q), K: Of(k), V: Of(v), O: Of(o)}))
	for i, x := range o {
		if x != 2 {
			t.Fatalf("o[%d] is %v", i, x)
		}
	}
}

func TestScaleZeroIsAMean(t *testing.T) {
	q, v, o := random(24, 1), random(24, 2), make([]float32, 24)
	zero, a := float32(0), shape()
	a.Scale = &zero
	works(t, open(t, CPU).Forward(a, &Forward{Q: Of(q), K: Of(q), V: Of(v), O: Of(o)}))
	for i := range o {
		near(t, o[i:], []float64{(float64(v[i%8]) + float64(v[8+i%8]) + float64(v[16+i%8])) / 3}, 1e-6)
	}
}

func TestLatentAttention(t *testing.T) {
	const heads, keys, dim, dimV = 3, 4, 8, 6
	a := &Attention{VInK: true, Batch: 1, HeadsQ: heads, HeadsK: 1, SeqlenQ: 1, SeqlenK: keys, DimQK: dim, DimV: dimV}
	h, q, fresh := open(t, CPU), random(heads*dim, 1), random(keys*dim, 2)
	k, o := make([]float32, keys*dim), make([]float32, heads*dimV)
	works(t, h.AppendKV(a, &AppendKV{KNew: Of(fresh), SeqlenNew: keys, K: Of(k)}))
	works(t, h.Forward(a, &Forward{Q: Of(q), K: Of(k), O: Of(o)}))
	for head := 0; head < heads; head++ {
		row := plainRow(q[head*dim:(head+1)*dim], fresh, fresh, keys, dim, all)
		near(t, o[head*dimV:(head+1)*dimV], row[:dimV], 1e-6)
	}
}

func TestPackedSequencesAndTheirGradients(t *testing.T) {
	const heads, dim, total = 2, 8, 7
	x := [3][]float32{random(112, 1), random(112, 2), random(112, 3)}
	dout, cu := random(112, 4), []int32{0, 3, 7}
	o, lse := make([]float32, 112), make([]float32, 14)
	a := &Attention{Batch: 2, HeadsQ: heads, TotalQ: total, TotalK: total, SeqlenQ: 4, SeqlenK: 4, DimQK: dim,
		Causal: true, Alignment: AlignTopLeft}
	h := open(t, CPU)
	forward := &Forward{Q: Of(x[0]), K: Of(x[1]), V: Of(x[2]), O: Of(o), LSE: lse, CuSeqlensQ: cu, CuSeqlensK: cu}
	works(t, h.Forward(a, forward))
	loss := func() (sum float64) {
		for i := 0; i < total; i++ {
			begin := 0
			if i >= 3 {
				begin = 3
			}
			for head := 0; head < heads; head++ {
				at, first := (i*heads+head)*dim, (begin*heads+head)*dim
				row := plainRow(x[0][at:at+dim], x[1][first:], x[2][first:], i-begin+1, heads*dim, all)
				near(t, o[at:at+dim], row, 1e-2) // near by, for this is called for changed inputs, too
				for d := range row {
					sum += row[d] * float64(dout[at+d])
				}
			}
		}
		return
	}
	d := [3][]float32{make([]float32, 112), make([]float32, 112), make([]float32, 112)}
	works(t, h.Backward(a, forward, &Backward{Dout: Of(dout), Dq: Of(d[0]), Dk: Of(d[1]), Dv: Of(d[2])}))
	for which := range x {
		for i := 0; i < 112; i += 9 {
			here := x[which][i]
			x[which][i] = here + 1e-3
			above, right := loss(), x[which][i]
			x[which][i] = here - 1e-3
			slope := (above - loss()) / (float64(right) - float64(x[which][i]))
			x[which][i] = here
			near(t, d[which][i:], []float64{slope}, 1e-4)
		}
	}
	// Added once more, the same is twice as much.
	once := append([]float32{}, d[0]...)
	works(t, h.Backward(a, forward, &Backward{Dout: Of(dout), Dq: Of(d[0]), Accumulate: true}))
	for i := range once {
		near(t, d[0][i:], []float64{2 * float64(once[i])}, 1e-6)
	}
	half := make([]F16, 112)
	refused(t, h.Backward(a, forward, &Backward{Dout: Of(dout), Dv: Of(half)}), InvalidArgument, "dv has type f16: expected f32")
	refused(t, h.Backward(a, forward, &Backward{Dout: Of(dout), Dv: Of(d[2][:111])}), InvalidArgument, "dv has 444 bytes")
}

func TestTokensAppendedToPagesAreAttended(t *testing.T) {
	const heads, dim, page = 2, 4, 2
	k, v := make([]F16, 4*page*heads*dim), make([]F16, 4*page*heads*dim)
	kNew, vNew, q, o := random(40, 1), random(40, 2), random(8, 3), make([]float32, 8)
	a := &Attention{Batch: 1, HeadsQ: heads, SeqlenQ: 1, SeqlenK: 6, DimQK: dim, PageSize: page, NumPages: 4}
	table, used := []int32{3, 0, 2}, []int32{0}
	h := open(t, CPU)
	appended := &AppendKV{KNew: Of(kNew), VNew: Of(vNew), SeqlenNew: 5, K: Of(k), V: Of(v), PageTable: table, SequsedK: used}
	works(t, h.AppendKV(a, appended))
	used[0] = 5
	works(t, h.Forward(a, &Forward{Q: Of(q), K: Of(k), V: Of(v), O: Of(o), PageTable: table, SequsedK: used}))
	for head := 0; head < heads; head++ {
		row := plainRow(q[head*dim:(head+1)*dim], kNew[head*dim:], vNew[head*dim:], 5, heads*dim, all)
		near(t, o[head*dim:], row, 2e-3) // float16 keys and values
	}
	used[0] = 2
	refused(t, h.AppendKV(a, appended), InvalidArgument, "seqlen_k is 6")
	table[1] = 4
	refused(t, h.Forward(a, &Forward{Q: Of(q), K: Of(k), V: Of(v), O: Of(o), PageTable: table, SequsedK: []int32{5}}), InvalidArgument, "page")
}

func TestPartsMergeIntoTheWhole(t *testing.T) {
	q, k, v := random(24, 1), random(64, 2), random(64, 3)
	whole, parts, lses, merged := make([]float32, 24), make([]float32, 48), make([]float32, 12), make([]float32, 24)
	a := &Attention{Batch: 1, HeadsQ: 2, SeqlenQ: 3, SeqlenK: 8, DimQK: 4}
	h := open(t, CPU)
	works(t, h.Forward(a, &Forward{Q: Of(q), K: Of(k), V: Of(v), O: Of(whole)}))
	a.SeqlenK = 4
	for p := 0; p < 2; p++ {
		works(t, h.Forward(a, &Forward{Q: Of(q), K: Of(k[32*p : 32*p+32]), V: Of(v[32*p : 32*p+32]), O: Of(parts[24*p : 24*p+24]), LSE: lses[6*p : 6*p+6]}))
	}
	works(t, h.Merge(a, &Merge{Parts: 2, OParts: parts, LSEParts: lses, O: Of(merged)}))
	for i := range whole {
		near(t, merged[i:], []float64{float64(whole[i])}, 1e-6)
	}
	refused(t, h.Merge(a, &Merge{Parts: 3, OParts: parts, LSEParts: lses, O: Of(merged)}), InvalidArgument, "o_parts has 192 bytes")
}

func TestRotaryTurnsPairsAlsoInPlace(t *testing.T) {
	x := []float32{1, 2, 3, 4, 5, 6, 7, 8}
	a := &Attention{Batch: 1, HeadsQ: 1, SeqlenQ: 2, DimQK: 4}
	works(t, open(t, CPU).Rotary(a, &Rotary{X: Of(x), Out: Of(x), Cos: []float32{1, 1, 0, -1}, Sin: []float32{0, 0, 1, 0}, MaxPosition: 2, RotaryDim: 4}))
	near(t, x, []float64{1, 2, 3, 4, -7, -6, 5, -8}, 0)
}

func TestRotaryOfPackedKeysOfATypeOfTheirOwn(t *testing.T) {
	x, out := []float32{1, 2, 3, 4, 5, 6}, make([]float32, 6)
	a := &Attention{QDtype: DtypeF16, Batch: 2, HeadsQ: 4, HeadsK: 1, TotalK: 3, SeqlenK: 2, DimQK: 2}
	turn := &Rotary{X: Of(x), Out: Of(out), Cos: []float32{1, 0}, Sin: []float32{0, 1}, MaxPosition: 2, RotaryDim: 2, CuSeqlens: []int32{0, 2, 3}}
	h := open(t, CPU)
	refused(t, h.Rotary(a, turn), InvalidArgument, "x has type f32: expected f16")
	turn.OfK = true
	works(t, h.Rotary(a, turn))
	near(t, out, []float64{1, 2, -4, 3, 5, 6}, 0)
}

func TestListsNameSlotsOfACache(t *testing.T) {
	q, cache, o, word := random(8, 1), random(24, 2), make([]float32, 8), []uint32{0}
	a := &Attention{Batch: 1, HeadsQ: 2, HeadsK: 1, SeqlenQ: 1, DimQK: 4, PageSize: 2, NumPages: 3,
		ListSpace: ListSpaceSlots, ListMax: 3, ListHeads: 1, ListStride: [4]int64{0, 0, 3, 1}}
	x := &Forward{Q: Of(q), K: Of(cache), V: Of(cache), O: Of(o), KeyList: []int32{4, 1, -1}, DeviceStatus: word}
	h := open(t, CPU)
	works(t, h.Forward(a, x))
	for head := 0; head < 2; head++ {
		near(t, o[4*head:], plainRow(q[4*head:4*head+4], cache, cache, 6, 4, func(slot int) bool { return slot == 4 || slot == 1 }), 1e-6)
	}
	x.KeyList[0] = 6
	refused(t, h.Forward(a, x), InvalidArgument, "key_list")
	if word[0] != 0 {
		t.Errorf("the status word is %d: a CPU refuses", word[0])
	}
}

func TestConversionsStayWithinTheirSlices(t *testing.T) {
	x, out, zeros := []F16{0x3c00, 0x4000, 0x4200}, []float32{1, 1, 1}, []int8{7, 7}
	h := open(t, CPU)
	add := &Conversion{X: Of(x), Out: Of(out), Size: [4]int64{1, 3, 1, 1}, XStride: [4]int64{0, 1, 0, 1}, OutStride: [4]int64{0, 1, 0, 1}, Accumulate: true}
	works(t, h.Convert(add))
	near(t, out, []float64{2, 3, 4}, 0)
	works(t, h.Convert(&Conversion{Out: Of(zeros), Size: [4]int64{1, 1, 1, 2}, OutStride: [4]int64{0, 0, 0, 1}}))
	if zeros[0] != 0 || zeros[1] != 0 {
		t.Errorf("got %v", zeros)
	}
	with := func(size, stride int64, sentence string) {
		t.Helper()
		wrong := *add
		wrong.Size[1], wrong.OutStride[1] = size, stride
		refused(t, h.Convert(&wrong), InvalidArgument, sentence)
	}
	with(4, 0, "x has 6 bytes: the call would use 8")
	with(3, 2, "out has 12 bytes: the call would use 20")
	with(3, math.MaxInt64, "out has 12 bytes")
	with(3, 0, "out_stride")
	with(-1, 1, "size[1] is -1")
	refused(t, h.Convert(nil), InvalidArgument, "nil")
	refused(t, h.Convert(&Conversion{Size: [4]int64{1, 1, 1, 1}}), UnsupportedField, "out_dtype")
	near(t, out, []float64{2, 3, 4}, 0)
}

func TestATensorThatDoesNotFitIsRefusedUntouched(t *testing.T) {
	h := open(t, CPU)
	names := []string{"q", "k", "v", "o", "lse"}
	for which, name := range names {
		lengths := [5]int{24, 24, 24, 24, 6}
		lengths[which]--
		o, lse := make([]float32, lengths[3]), make([]float32, lengths[4])
		x := &Forward{Q: Of(ones(lengths[0])), K: Of(ones(lengths[1])), V: Of(ones(lengths[2])), O: Of(o), LSE: lse}
		refused(t, h.Forward(shape(), x), InvalidArgument, name+" has")
		for _, y := range append(o, lse...) {
			if y != 0 {
				t.Fatalf("%s: an output was written", name)
			}
		}
	}
	a := shape()
	a.Batch = math.MaxInt64
	refused(t, h.Forward(a, plain()), InvalidArgument, "")
	a = shape()
	a.KDtype = DtypeF16
	refused(t, h.Forward(a, plain()), InvalidArgument, "k has type f32: expected f16")
	a = shape()
	a.Softcap = -1
	refused(t, h.Forward(a, plain()), InvalidArgument, "softcap")
	works(t, h.Forward(shape(), plain()))
}

func TestAnEmptyBatchIsFine(t *testing.T) {
	a := shape()
	a.Batch = 0
	empty := []float32{}
	works(t, open(t, CPU).Forward(a, &Forward{Q: Of(empty), K: Of(empty), V: Of(empty), O: Of(empty), LSE: empty}))
	a.QDtype = DtypeF32
	works(t, open(t, CPU).Forward(a, &Forward{}))
}
