package flashattn

import (
	"errors"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
)

func open(t *testing.T, backend Backend) *Handle {
	t.Helper()
	h, err := New(backend)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func shape() *Attention {
	return &Attention{Batch: 1, HeadsQ: 2, SeqlenQ: 3, SeqlenK: 3, DimQK: 4}
}

func ones(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = 1
	}
	return x
}

// plain is a call on four slices of which each is as it should be.
func plain() *Forward {
	return &Forward{Q: Of(ones(24)), K: Of(ones(24)), V: Of(ones(24)), O: Of(make([]float32, 24))}
}

func refused(t *testing.T, err error, status Status, sentence string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Status != status || !strings.Contains(e.Message, sentence) {
		t.Errorf("got %v, expected %v with %q", err, status, sentence)
	}
}

func TestParametersAreSetAndRead(t *testing.T) {
	h := open(t, CPU)
	if backend, err := h.Backend(); err != nil || backend != CPU {
		t.Errorf("got %v, %v", backend, err)
	}
	if err := h.SetThreads(2); err != nil {
		t.Error(err)
	}
	if threads, err := h.Get(ParamThreads); err != nil || threads != 2 {
		t.Errorf("got %v, %v", threads, err)
	}
	refused(t, h.SetThreads(-1), InvalidArgument, "threads")
	if stream, err := h.Get(InfoStream); err != nil || stream != 0 {
		t.Errorf("got %v, %v", stream, err)
	}
}

func TestQuestionsAreAnsweredWithoutData(t *testing.T) {
	h := open(t, CPU)
	a := shape()
	a.QDtype = DtypeF32
	if err := h.Supports(a, OpForward); err != nil {
		t.Error(err)
	}
	if said, err := h.Explain(a, OpForward); err != nil || !strings.Contains(said, "cpu") {
		t.Errorf("got %q, %v", said, err)
	}
	if _, err := h.WorkspaceSize(a, OpForward); err != nil {
		t.Error(err)
	}
	a.QDtype = DtypeE4m3
	refused(t, h.Supports(a, OpBackward), Unsupported, "e4m3")
}

func TestAnUnknownBackendIsRefused(t *testing.T) {
	h, err := New(Backend(99))
	if h != nil {
		t.Error("there is a handle")
	}
	refused(t, err, UnsupportedField, "99")
	_, err = NewWith(Options{Backend: CPU, BackendDir: "not/absolute"})
	refused(t, err, InvalidArgument, "backend_dir")
}

func TestAClosedHandleIsRefused(t *testing.T) {
	h := open(t, CPU)
	h.Close()
	h.Close()
	refused(t, h.Forward(shape(), plain()), InvalidState, "closed")
}

func TestNilIsRefused(t *testing.T) {
	h := open(t, CPU)
	refused(t, h.Forward(nil, plain()), InvalidArgument, "attention is nil")
	refused(t, h.Forward(shape(), nil), InvalidArgument, "args are nil")
	refused(t, h.Backward(shape(), nil, nil), InvalidArgument, "args are nil")
	refused(t, h.Merge(shape(), nil), InvalidArgument, "args are nil")
	refused(t, h.Rotary(shape(), nil), InvalidArgument, "args are nil")
	refused(t, h.AppendKV(shape(), nil), InvalidArgument, "args are nil")
	refused(t, h.Supports(nil, OpForward), InvalidArgument, "attention is nil")
	refused(t, h.Forward(shape(), &Forward{}), InvalidArgument, "q_dtype")
	typed := shape()
	typed.QDtype = DtypeF32
	refused(t, h.Forward(typed, &Forward{}), InvalidArgument, "NULL")
	refused(t, h.Rotary(shape(), &Rotary{}), InvalidArgument, "")
	refused(t, h.Merge(shape(), &Merge{}), InvalidArgument, "")
	refused(t, h.AppendKV(shape(), &AppendKV{}), InvalidArgument, "")
	refused(t, h.Backward(shape(), &Forward{}, &Backward{}), InvalidArgument, "")
	var none *Handle
	none.Close()
	refused(t, none.Forward(shape(), plain()), InvalidState, "nil")
	if _, err := none.Backend(); err == nil {
		t.Error("a nil handle has a backend")
	}
	refused(t, new(Handle).SetThreads(1), InvalidState, "not made by New")
}

// go vet would not let this pass, so the copy goes by reflection.
func TestACopyIsRefused(t *testing.T) {
	h := open(t, CPU)
	value := reflect.New(reflect.TypeOf(h).Elem())
	value.Elem().Set(reflect.ValueOf(h).Elem())
	twin := value.Interface().(*Handle)
	h.Close()
	twin.Close()
	refused(t, twin.Forward(shape(), plain()), InvalidState, "copy")
}

// Nothing of a handle may keep it alive, or its finalizer would never run.
func TestAForgottenHandleIsCollected(t *testing.T) {
	closed := make(chan bool)
	func() {
		h, err := New(CPU)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Forward(shape(), plain()); err != nil {
			t.Error(err)
		}
		runtime.SetFinalizer(h, nil)
		runtime.SetFinalizer(h, func(h *Handle) {
			h.Close()
			close(closed)
		})
	}()
	for i := 0; i < 100; i++ {
		runtime.GC()
		select {
		case <-closed:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Error("it was not collected")
}

func TestGoroutinesWaitForOneAnother(t *testing.T) {
	h := open(t, CPU)
	failed := make(chan error)
	for i := 0; i < 8; i++ {
		go func() { failed <- h.Forward(shape(), plain()) }()
	}
	for i := 0; i < 8; i++ {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

func TestHelpers(t *testing.T) {
	if Version() < 200 || Version() >= 10000 {
		t.Errorf("version %d", Version())
	}
	if slopes, err := AlibiSlopes(2, 0); err != nil || slopes[0] != 0.0625 || slopes[1] != 0.00390625 {
		t.Errorf("got %v, %v", slopes, err)
	}
	_, err := AlibiSlopes(-1, 0)
	refused(t, err, InvalidArgument, "heads")
	if math.Abs(float64(DtypeF16)-2) > 0 || DtypeF16.String() != "f16" || Dtype(77).String() != "number 77" {
		t.Error("names of types")
	}
}

func TestBackendsAndDevicesAreAskedWithoutAHandle(t *testing.T) {
	if err := BackendStatus(CPU); err != nil {
		t.Error(err)
	}
	refused(t, BackendStatus(Backend(77)), InvalidArgument, "backend is 77")
	devices, err := Devices(CPU)
	if err != nil || len(devices) != 1 {
		t.Fatalf("got %v, %v", devices, err)
	}
	if d := devices[0]; d.Backend != CPU || d.Index != 0 || d.ComputeUnits < 1 || d.MemoryBytes == 0 || d.Name == "" || d.Arch == "" {
		t.Errorf("got %+v", d)
	}
	a := shape()
	a.QDtype = DtypeF32
	if how, err := BackendSupports(CPU, 0, a, OpForward); err != nil || !strings.Contains(how, "cpu") {
		t.Errorf("got %q, %v", how, err)
	}
	a.QDtype = DtypeE4m3
	_, err = BackendSupports(CPU, 0, a, OpBackward)
	refused(t, err, Unsupported, "e4m3")
	_, err = BackendSupports(CPU, 0, nil, OpForward)
	refused(t, err, InvalidArgument, "nil")
	if BackendStatus(CUDA) != nil {
		devices, err = Devices(CUDA)
		var e *Error
		if len(devices) != 0 || !errors.As(err, &e) || e.Message == "" {
			t.Errorf("got %v, %v", devices, err)
		}
	}
}

func TestDropoutMaskIsWhatAForwardDraws(t *testing.T) {
	const rows, keys = 3, 5
	h, keep := open(t, CPU), make([]bool, rows*keys)
	if err := DropoutMask(keep, 0.5, 9, 4, 1, 0, rows, 0, keys); err != nil {
		t.Fatal(err)
	}
	// With v of one 1 for each key, o is P; dropped weights are 0.
	a := &Attention{Batch: 1, HeadsQ: 2, HeadsK: 1, SeqlenQ: rows, SeqlenK: keys, DimQK: keys, DropoutP: 0.5}
	q, v, o := make([]float32, 2*rows*keys), make([]float32, keys*keys), make([]float32, 2*rows*keys)
	for j := 0; j < keys; j++ {
		v[j*keys+j] = 1
	}
	err := h.Forward(a, &Forward{Q: Of(q), K: Of(v), V: Of(v), O: Of(o), DropoutSeed: 9, DropoutOffset: 4})
	if err != nil {
		t.Fatal(err)
	}
	dropped := 0
	for i := 0; i < rows; i++ {
		for j := 0; j < keys; j++ {
			if (o[(2*i+1)*keys+j] != 0) != keep[i*keys+j] {
				t.Errorf("row %d, key %d: %v and %v", i, j, o[(2*i+1)*keys+j], keep[i*keys+j])
			}
			if !keep[i*keys+j] {
				dropped++
			}
		}
	}
	if dropped == 0 || dropped == rows*keys {
		t.Errorf("%d dropped", dropped)
	}
	refused(t, DropoutMask(keep, 0.5, 9, 4, 1, 0, rows+1, 0, keys), InvalidArgument, "keep has 15 elements")
	refused(t, DropoutMask(keep, 2, 9, 4, 1, 0, rows, 0, keys), InvalidArgument, "p is 2")
	refused(t, DropoutMask(nil, 0.5, 9, 4, 1, 0, -1, 0, keys), InvalidArgument, "rows is -1")
}
