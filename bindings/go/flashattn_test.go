package flashattn

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
)

func shape() *Attention {
	return &Attention{Batch: 1, HeadsQ: 2, SeqlenQ: 3, SeqlenK: 3, DimQK: 4}
}

func fill(value func(i int) float32) []float32 {
	x := make([]float32, 24)
	for i := range x {
		x[i] = value(i)
	}
	return x
}

func open(t *testing.T, backend Backend) *Handle {
	t.Helper()
	h, err := New(backend)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func near(a, b float32) bool { return math.Abs(float64(a-b)) <= 1e-5*math.Max(1, math.Abs(float64(b))) }

func allNear(a, b []float32) bool {
	for i := range a {
		if !near(a[i], b[i]) {
			return false
		}
	}
	return len(a) == len(b)
}

func TestTheFirstCausalRowIsTheFirstValue(t *testing.T) {
	q := fill(func(i int) float32 { return float32(i) / 7 })
	v := fill(func(i int) float32 { return float32(i * i % 11) })
	o, lse := make([]float32, 24), make([]float32, 6)
	a := shape()
	a.Causal, a.Alignment = true, BottomRight
	if err := open(t, Auto).Attention(a, q, q, v, o, lse); err != nil {
		t.Fatal(err)
	}
	if !allNear(o[:8], v[:8]) {
		t.Errorf("o = %v, want %v", o[:8], v[:8])
	}
	var score float32 // LSE is [head][row]: one key, so the score itself, scaled by 1 / sqrt(4)
	for _, x := range q[4:8] {
		score += x * x / 2
	}
	if !near(lse[3], score) {
		t.Errorf("lse = %v, want %v", lse[3], score)
	}
}

func TestWindowAndScaleAct(t *testing.T) {
	q := fill(func(i int) float32 { return float32(i) / 7 })
	v := fill(func(i int) float32 { return float32(i) })
	o := make([]float32, 24)
	h := open(t, CPU)
	a := shape()
	a.Window, a.Alignment = &Window{0, 0}, TopLeft
	if err := h.Attention(a, q, q, v, o, nil); err != nil || !allNear(o, v) {
		t.Errorf("window: %v, o = %v", err, o)
	}
	a, zero := shape(), float32(0)
	a.Scale = &zero
	if err := h.Attention(a, q, q, v, o, nil); err != nil || !near(o[0], v[8]) {
		t.Errorf("scale: %v, o = %v", err, o)
	}
}

func TestASliceOfTheWrongLengthIsRefused(t *testing.T) {
	good := fill(func(int) float32 { return 1 })
	o := make([]float32, 24)
	h := open(t, Auto)
	for _, c := range []struct {
		change func(*Attention)
		k      []float32
		want   string
	}{
		{func(*Attention) {}, good[:23], "k has 23 elements, but its shape is [1 3 2 4]"},
		{func(a *Attention) { a.Batch = math.MaxInt64 }, good, "q has 24 elements"},
		{func(a *Attention) { a.Batch = -1 }, good, "q has 24 elements"},
	} {
		a := shape()
		c.change(a)
		err := h.Attention(a, good, c.k, good, o, nil)
		var e *Error
		if !errors.As(err, &e) || e.Status != InvalidArgument || !strings.HasPrefix(e.Message, c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	if !allNear(o, make([]float32, 24)) {
		t.Errorf("o was written: %v", o)
	}
}

func TestEverySliceIsCheckedAndNothingIsTouched(t *testing.T) {
	h := open(t, Auto)
	a := &Attention{Batch: 2, HeadsQ: 4, HeadsK: 2, SeqlenQ: 3, SeqlenK: 5, DimQK: 4, DimV: 3}
	names, right := [5]string{"q", "k", "v", "o", "lse"}, [5]int{96, 80, 60, 72, 24}
	for which, name := range names {
		for _, change := range []int{-1, 1} {
			var x [5][]float32
			for i, length := range right {
				if i == which {
					length += change
				}
				x[i] = make([]float32, length)
			}
			err := h.Attention(a, x[0], x[1], x[2], x[3], x[4])
			var e *Error
			if !errors.As(err, &e) || e.Status != InvalidArgument || !strings.HasPrefix(e.Message, name+" has") {
				t.Errorf("%s %+d: %v", name, change, err)
			}
			if !allNear(append(x[3], x[4]...), make([]float32, len(x[3])+len(x[4]))) {
				t.Errorf("%s %+d: outputs were written", name, change)
			}
		}
	}
}

// The shapes that this package checks are what the library says that it touches.
func TestOneElementLessIsTooLittle(t *testing.T) {
	a := &Attention{Batch: 2, HeadsQ: 4, HeadsK: 2, SeqlenQ: 3, SeqlenK: 5, DimQK: 4, DimV: 3}
	right := [5]int{96, 80, 60, 72, 24}
	for which := -1; which < len(right); which++ {
		var x [5][]float32
		for i, length := range right {
			if i == which {
				length--
			}
			x[i] = make([]float32, length)
		}
		err := a.checkRoom(x[0], x[1], x[2], x[3], x[4])
		if (which == -1) != (err == nil) {
			t.Errorf("one less in %d: %v", which, err)
		}
	}
}

func TestAnErrorOfTheLibraryCarriesItsSentence(t *testing.T) {
	x := fill(func(int) float32 { return 1 })
	o := make([]float32, 24)
	h := open(t, Auto)
	a := shape()
	a.Softcap = -1
	err := h.Attention(a, x, x, x, o, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "FA_INVALID_ARGUMENT: ") || !strings.Contains(err.Error(), "softcap") {
		t.Errorf("got %v", err)
	}
	if err := h.Attention(shape(), x, x, x, o, nil); err != nil || !allNear(o, x) {
		t.Errorf("after an error: %v, o = %v", err, o)
	}
	if err := h.SetThreads(-1); err == nil || !strings.HasPrefix(err.Error(), "FA_INVALID_ARGUMENT: ") {
		t.Errorf("got %v", err)
	}
}

func TestAnEmptyBatchIsFine(t *testing.T) {
	a := shape()
	a.Batch = 0
	if err := open(t, Auto).Attention(a, nil, nil, nil, nil, nil); err != nil {
		t.Error(err)
	}
}

func TestAnUnknownBackendIsRefused(t *testing.T) {
	h, err := New(Backend(99))
	if h != nil || err == nil || !strings.Contains(err.Error(), "99") {
		t.Errorf("got %v, %v", h, err)
	}
}

func TestAClosedHandleIsRefused(t *testing.T) {
	h := open(t, CPU)
	if backend, err := h.Backend(); err != nil || backend != CPU {
		t.Errorf("got %v, %v", backend, err)
	}
	h.Close()
	h.Close()
	if err := h.Attention(shape(), nil, nil, nil, nil, nil); err == nil || !strings.HasPrefix(err.Error(), "FA_INVALID_STATE: ") {
		t.Errorf("got %v", err)
	}
}

func TestNilIsRefused(t *testing.T) {
	x := fill(func(int) float32 { return 1 })
	if err := open(t, CPU).Attention(nil, x, x, x, x, nil); err == nil || !strings.HasPrefix(err.Error(), "FA_INVALID_ARGUMENT: ") {
		t.Errorf("got %v", err)
	}
	var none *Handle
	none.Close()
	if err := none.Attention(shape(), x, x, x, x, nil); err == nil || !strings.HasPrefix(err.Error(), "FA_INVALID_STATE: ") {
		t.Errorf("got %v", err)
	}
	if _, err := none.Backend(); err == nil {
		t.Error("a nil handle has a backend")
	}
	if err := new(Handle).SetThreads(1); err == nil || !strings.Contains(err.Error(), "not made by New") {
		t.Errorf("got %v", err)
	}
}

// go vet would not let this pass, so the copy goes by reflection.
func TestACopyIsRefused(t *testing.T) {
	h := open(t, CPU)
	value := reflect.New(reflect.TypeOf(h).Elem())
	value.Elem().Set(reflect.ValueOf(h).Elem())
	twin := value.Interface().(*Handle)
	h.Close()
	twin.Close()
	x := fill(func(int) float32 { return 1 })
	if err := twin.Attention(shape(), x, x, x, x, nil); err == nil || !strings.Contains(err.Error(), "copy") {
		t.Errorf("got %v", err)
	}
}

func TestGoroutinesWaitForOneAnother(t *testing.T) {
	h := open(t, CPU)
	x := fill(func(int) float32 { return 1 })
	failed := make(chan error)
	for i := 0; i < 8; i++ {
		go func() {
			failed <- h.Attention(shape(), x, x, x, make([]float32, 24), nil)
		}()
	}
	for i := 0; i < 8; i++ {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

func TestVersion(t *testing.T) {
	if Version() < 200 || Version() >= 10000 {
		t.Errorf("version %d", Version())
	}
}
