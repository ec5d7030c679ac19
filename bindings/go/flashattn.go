// Package flashattn computes attention through libflashattn: o = softmax(scale · q kᵀ, masked) v, without ever storing the score
// matrix. It covers dense attention on slices; the C header flashattn.h is the manual of everything.
package flashattn

/*
#cgo pkg-config: flashattn
#include <flashattn.h>
#if FA_VERSION < 200 || FA_VERSION_MAJOR != 0
#error "this package was written for libflashattn 0.2 and runs with that and every later 0.y"
#endif

// The args struct holds pointers to Go memory, which cgo lets C code see only as arguments of a call: it is filled here.
static fa_status_t forward(fa_handle_t handle, const fa_attention_desc_t* desc, const void* q, const void* k, const void* v, void* o,
                           float* lse) {
    fa_forward_args_t args = FA_FORWARD_ARGS_INIT;
    args.q = q;
    args.k = k;
    args.v = v;
    args.o = o;
    args.lse = lse;
    return fa_forward_ex(handle, desc, &args);
}

static fa_forward_args_t no_pointers(void) {
    fa_forward_args_t args = FA_FORWARD_ARGS_INIT;
    return args;
}

static fa_attention_desc_t plain(void) {
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    return desc;
}

static fa_create_info_t host(int32_t backend) {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = backend;
    info.memory = FA_MEMORY_HOST;
    return info;
}
*/
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// Status is the status of a failed call.
type Status int32

// Statuses; the header says what each means.
const (
	InvalidArgument     Status = C.FA_INVALID_ARGUMENT
	UnsupportedField    Status = C.FA_UNSUPPORTED_FIELD
	Unsupported         Status = C.FA_UNSUPPORTED
	OutOfMemory         Status = C.FA_OUT_OF_MEMORY
	NoDevice            Status = C.FA_NO_DEVICE
	BackendMissing      Status = C.FA_BACKEND_MISSING
	BackendIncompatible Status = C.FA_BACKEND_INCOMPATIBLE
	DeviceError         Status = C.FA_DEVICE_ERROR
	InvalidState        Status = C.FA_INVALID_STATE
	Internal            Status = C.FA_INTERNAL
)

func (s Status) String() string { return C.GoString(C.fa_status_name(C.fa_status_t(s))) }

// Error is what the library said: which field, its value, what was expected.
type Error struct {
	Status  Status
	Message string
}

func (e *Error) Error() string { return e.Status.String() + ": " + e.Message }

// Backend says where a handle computes.
type Backend int32

// Backends. Auto is the first usable of CUDA, HIP and CPU.
const (
	Auto Backend = C.FA_BACKEND_AUTO
	CPU  Backend = C.FA_BACKEND_CPU
	CUDA Backend = C.FA_BACKEND_CUDA
	HIP  Backend = C.FA_BACKEND_HIP
)

// Alignment says where the diagonal of a mask lies.
type Alignment int32

// TopLeft: row 0 stands on key 0. BottomRight: the last row stands on the last key, which is right for decoding.
const (
	TopLeft     Alignment = C.FA_ALIGN_TOP_LEFT
	BottomRight Alignment = C.FA_ALIGN_BOTTOM_RIGHT
)

// Window keeps the keys from Left before to Right after a row's position; −1 keeps all.
type Window struct {
	Left, Right int64
}

// Attention describes q [Batch][SeqlenQ][HeadsQ][DimQK], k [Batch][SeqlenK][HeadsK][DimQK], v [Batch][SeqlenK][HeadsV][DimV] and
// o [Batch][SeqlenQ][HeadsQ][DimV]. Zero means the default.
type Attention struct {
	Batch   int64
	HeadsQ  int64
	HeadsK  int64 // divides HeadsQ; 0: the same
	HeadsV  int64 // divides HeadsQ; 0: HeadsK. Another number is not supported yet
	SeqlenQ int64
	SeqlenK int64
	DimQK   int64
	DimV    int64 // 0: DimQK

	Causal    bool      // each row sees keys up to its own position
	Alignment Alignment // needed by Causal and Window
	Window    *Window
	Scale     *float32 // nil: 1 / sqrt(DimQK)
	Softcap   float32  // 0: off
}

// Handle owns backend, device, threads and scratch memory. It takes ordinary memory on every backend. Calls of several goroutines
// wait for one another. New makes one, and it stays where it is: a copy would use what the other has freed, so go vet points at it and
// every call on it fails.
type Handle struct {
	mutex sync.Mutex
	self  *Handle // where New made it
	raw   C.fa_handle_t
}

// New makes a handle on the backend. Close it after use.
func New(backend Backend) (*Handle, error) {
	// The sentence of a failed fa_create belongs to the thread that called it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	h := new(Handle)
	h.self = h
	info := C.host(C.int32_t(backend))
	if status := C.fa_create(&h.raw, &info); status != C.FA_OK {
		return nil, &Error{Status(status), C.GoString(C.fa_last_error(nil))}
	}
	return h, nil
}

// Close frees the handle. Closing twice is fine, and closing nil.
func (h *Handle) Close() {
	if h.enter() == nil {
		defer h.mutex.Unlock()
		C.fa_destroy(h.raw)
		h.raw = nil
	}
}

// Backend is the one that the handle resolved to.
func (h *Handle) Backend() (Backend, error) {
	if err := h.enter(); err != nil {
		return Auto, err
	}
	defer h.mutex.Unlock()
	var backend C.int64_t
	status := C.fa_param_get(h.raw, C.FA_INFO_BACKEND, &backend)
	return Backend(backend), h.check(status)
}

// SetThreads limits the threads of the CPU backend; 0 is the default. Threads never change a result.
func (h *Handle) SetThreads(threads int) error {
	if err := h.enter(); err != nil {
		return err
	}
	defer h.mutex.Unlock()
	return h.check(C.fa_param_set(h.raw, C.FA_PARAM_THREADS, C.int64_t(threads)))
}

// Attention writes the attention of q, k and v into o, and each row's log-sum-exp into lse, [Batch][HeadsQ][SeqlenQ], unless that
// is nil.
func (h *Handle) Attention(a *Attention, q, k, v, o, lse []float32) error {
	if err := h.enter(); err != nil {
		return err
	}
	defer h.mutex.Unlock()
	if a == nil {
		return &Error{InvalidArgument, "the attention is nil"}
	}
	if err := a.checkLengths(q, k, v, o, lse); err != nil {
		return err
	}
	if err := a.checkRoom(q, k, v, o, lse); err != nil {
		return err
	}
	desc := a.descriptor(lse != nil)
	return h.check(C.forward(h.raw, &desc, pointer(q), pointer(k), pointer(v), pointer(o), (*C.float)(pointer(lse))))
}

// enter takes the mutex of a handle that is open; the caller gives it back.
func (h *Handle) enter() error {
	switch {
	case h == nil:
		return &Error{InvalidState, "the handle is nil"}
	case h.self != h:
		return &Error{InvalidState, "the handle is a copy, or not made by New"}
	}
	h.mutex.Lock()
	if h.raw == nil {
		h.mutex.Unlock()
		return &Error{InvalidState, "the handle is closed"}
	}
	return nil
}

// Asks the library how far it would go behind each pointer.
func (a *Attention) checkRoom(q, k, v, o, lse []float32) error {
	desc := a.descriptor(lse != nil)
	// The sentence of a call without a handle belongs to the thread that made it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	args := C.no_pointers()
	for _, buffer := range []struct {
		name  string
		field uintptr
		data  []float32
	}{
		{"q", unsafe.Offsetof(args.q), q},
		{"k", unsafe.Offsetof(args.k), k},
		{"v", unsafe.Offsetof(args.v), v},
		{"o", unsafe.Offsetof(args.o), o},
		{"lse", unsafe.Offsetof(args.lse), lse},
	} {
		var bytes C.uint64_t
		if status := C.fa_extent(&desc, C.FA_OP_FORWARD, unsafe.Pointer(&args), C.uint32_t(buffer.field), &bytes); status != C.FA_OK {
			return &Error{Status(status), C.GoString(C.fa_last_error(nil))}
		}
		if room := uint64(len(buffer.data)) * 4; uint64(bytes) > room {
			return &Error{InvalidArgument, fmt.Sprintf("%s has %d bytes: the call would use %d", buffer.name, room, bytes)}
		}
	}
	return nil
}

func (h *Handle) check(status C.fa_status_t) error {
	if status == C.FA_OK {
		return nil
	}
	return &Error{Status(status), C.GoString(C.fa_last_error(h.raw))}
}

// Version of the library that runs: major * 10000 + minor * 100 + patch.
func Version() int { return int(C.fa_version()) }

func (a *Attention) descriptor(withLse bool) C.fa_attention_desc_t {
	desc := C.plain()
	if withLse {
		desc.operands |= C.FA_OPERAND_LSE
	}
	desc.q_dtype = C.FA_F32
	desc.batch = C.int64_t(a.Batch)
	desc.heads_q = C.int64_t(a.HeadsQ)
	desc.heads_k = C.int64_t(a.HeadsK)
	desc.heads_v = C.int64_t(a.HeadsV)
	desc.seqlen_q = C.int64_t(a.SeqlenQ)
	desc.seqlen_k = C.int64_t(a.SeqlenK)
	desc.dim_qk = C.int64_t(a.DimQK)
	desc.dim_v = C.int64_t(a.DimV)
	desc.softcap = C.float(a.Softcap)
	desc.alignment = C.int32_t(a.Alignment)
	if a.Causal {
		desc.flags |= C.FA_CAUSAL
	}
	if a.Window != nil {
		desc.flags |= C.FA_WINDOW
		desc.window_left = C.int64_t(a.Window.Left)
		desc.window_right = C.int64_t(a.Window.Right)
	}
	if a.Scale != nil {
		desc.flags |= C.FA_SCALE_EXPLICIT
		desc.scale = C.float(*a.Scale)
	}
	return desc
}

func (a *Attention) checkLengths(q, k, v, o, lse []float32) error {
	headsK, headsV, dimV := a.HeadsK, a.HeadsV, a.DimV
	if headsK == 0 {
		headsK = a.HeadsQ
	}
	if headsV == 0 {
		headsV = headsK
	}
	if dimV == 0 {
		dimV = a.DimQK
	}
	checks := []struct {
		name  string
		data  []float32
		shape [4]int64
	}{
		{"q", q, [4]int64{a.Batch, a.SeqlenQ, a.HeadsQ, a.DimQK}},
		{"k", k, [4]int64{a.Batch, a.SeqlenK, headsK, a.DimQK}},
		{"v", v, [4]int64{a.Batch, a.SeqlenK, headsV, dimV}},
		{"o", o, [4]int64{a.Batch, a.SeqlenQ, a.HeadsQ, dimV}},
		{"lse", lse, [4]int64{a.Batch, a.HeadsQ, a.SeqlenQ, 1}},
	}
	for _, c := range checks {
		if c.name == "lse" && c.data == nil {
			continue
		}
		if !hasShape(len(c.data), c.shape) {
			return &Error{InvalidArgument, fmt.Sprintf("%s has %d elements, but its shape is %v", c.name, len(c.data), c.shape)}
		}
	}
	return nil
}

// Divides instead of multiplying, so that no product overflows. A zero anywhere makes the tensor empty.
func hasShape(length int, shape [4]int64) bool {
	for _, n := range shape {
		if n < 0 {
			return false
		}
	}
	for _, n := range shape {
		if n == 0 {
			return length == 0
		}
	}
	rest := int64(length)
	for _, n := range shape {
		if rest%n != 0 {
			return false
		}
		rest /= n
	}
	return rest == 1
}

func pointer(x []float32) unsafe.Pointer {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Pointer(&x[0])
}
