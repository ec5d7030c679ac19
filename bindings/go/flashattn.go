// Package flashattn computes attention with libflashattn: o = softmax(scale · q kᵀ, masked) v, without storing the score matrix. An
// Attention says what is computed. A Forward, Backward, Merge, Rotary or AppendKV says where the data is. A Handle owns backend, threads
// and scratch memory. Names follow the C header flashattn.h, which is the manual.
//
// The C library is found by pkg-config.
package flashattn

/*
#cgo pkg-config: flashattn
#include <stdlib.h>
#include "calls.h"
#if FA_VERSION < 200 || FA_VERSION_MAJOR != 0
#error "this package was written for libflashattn 0.2 and runs with that and every later 0.y"
#endif

static fa_create_info_t host(int32_t backend) {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = backend;
    info.memory = FA_MEMORY_HOST;
    return info;
}

enum { TEXT_MAX = FA_TEXT_MAX };
*/
import "C"

import (
	"runtime"
	"sync"
	"unsafe"
)

// Status is the status of a failed call.
type Status int32

func (s Status) String() string { return C.GoString(C.fa_status_name(C.fa_status_t(s))) }

// Error has the library's message: the field, its value and what was expected.
type Error struct {
	Status  Status
	Message string
}

func (e *Error) Error() string { return e.Status.String() + ": " + e.Message }

// Options are the options of a new handle. The zero value takes the first usable of CUDA, HIP and CPU.
type Options struct {
	Backend    Backend
	Device     int32    // index within the backend
	LogLevel   LogLevel // lines go to the file of FLASHATTN_LOG_FILE
	BackendDir string   // absolute folder of backend modules, searched before all others; "": none
}

// Handle owns backend, device, threads and scratch memory. It takes ordinary memory on every backend. Calls of several goroutines wait
// for each other. Do not copy a Handle: go vet reports copies, and every call on a copy fails, because it might use memory that the
// original has freed. If a handle is not closed, the garbage collector closes it.
type Handle struct {
	mutex sync.Mutex
	self  uintptr // where New made it; a pointer to itself would keep it from the garbage collector
	raw   C.fa_handle_t
}

// New makes a handle on the backend. Close it after use.
func New(backend Backend) (*Handle, error) { return NewWith(Options{Backend: backend}) }

// NewWith makes a handle with options.
func NewWith(options Options) (*Handle, error) {
	// The sentence of a failed fa_create belongs to the thread that called it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	info := C.host(C.int32_t(options.Backend))
	info.device = C.int32_t(options.Device)
	info.log_level = C.int32_t(options.LogLevel)
	if options.BackendDir != "" {
		info.backend_dir = C.CString(options.BackendDir)
		defer C.free(unsafe.Pointer(info.backend_dir))
	}
	h := new(Handle)
	h.self = uintptr(unsafe.Pointer(h))
	if status := C.fa_create(&h.raw, &info); status != C.FA_OK {
		return nil, &Error{Status(status), C.GoString(C.fa_last_error(nil))}
	}
	runtime.SetFinalizer(h, (*Handle).Close)
	return h, nil
}

// Close frees the handle. A second Close, or one of nil, does nothing.
func (h *Handle) Close() {
	if h.enter() == nil {
		defer h.mutex.Unlock()
		C.fa_destroy(h.raw)
		h.raw = nil
		runtime.SetFinalizer(h, nil)
	}
}

// enter takes the mutex of a handle that is open; the caller gives it back, which also keeps the handle from the garbage collector.
func (h *Handle) enter() error {
	switch {
	case h == nil:
		return &Error{InvalidState, "the handle is nil"}
	case h.self != uintptr(unsafe.Pointer(h)):
		return &Error{InvalidState, "the handle is a copy, or not made by New"}
	}
	h.mutex.Lock()
	if h.raw == nil {
		h.mutex.Unlock()
		return &Error{InvalidState, "the handle is closed"}
	}
	return nil
}

func (h *Handle) check(status C.fa_status_t) error {
	if status == C.FA_OK {
		return nil
	}
	return &Error{Status(status), C.GoString(C.fa_last_error(h.raw))}
}

// Set sets a parameter.
func (h *Handle) Set(param Param, value int64) error {
	if err := h.enter(); err != nil {
		return err
	}
	defer h.mutex.Unlock()
	return h.check(C.fa_param_set(h.raw, C.int32_t(param), C.int64_t(value)))
}

// Get reads a parameter, a fact or a figure.
func (h *Handle) Get(param Param) (int64, error) {
	if err := h.enter(); err != nil {
		return 0, err
	}
	defer h.mutex.Unlock()
	var value C.int64_t
	status := C.fa_param_get(h.raw, C.int32_t(param), &value)
	return int64(value), h.check(status)
}

// Backend is the one that the handle resolved to.
func (h *Handle) Backend() (Backend, error) {
	value, err := h.Get(InfoBackend)
	return Backend(value), err
}

// SetThreads limits the threads of the CPU backend; 0 is the default. Results do not depend on it.
func (h *Handle) SetThreads(threads int) error { return h.Set(ParamThreads, int64(threads)) }

// Supports says whether a call would work: nil, or the error that it would give. Set types and Operands in the Attention.
func (h *Handle) Supports(a *Attention, op Op) error {
	return h.ask(a, func(desc *C.fa_attention_desc_t) error { return h.check(C.fa_supports(h.raw, desc, C.int32_t(op))) })
}

// Explain says how a call would be computed, or why it is refused.
func (h *Handle) Explain(a *Attention, op Op) (string, error) {
	var said string
	err := h.ask(a, func(desc *C.fa_attention_desc_t) error {
		text := make([]byte, C.TEXT_MAX)
		buffer := (*C.char)(unsafe.Pointer(&text[0]))
		status := C.fa_explain(h.raw, desc, C.int32_t(op), buffer, C.uint64_t(len(text)))
		if said = C.GoString(buffer); said == "" {
			return h.check(status)
		}
		return nil // a refusal is an answer
	})
	return said, err
}

// WorkspaceSize gives the bytes of scratch memory that a call needs.
func (h *Handle) WorkspaceSize(a *Attention, op Op) (uint64, error) {
	var bytes C.uint64_t
	err := h.ask(a, func(desc *C.fa_attention_desc_t) error {
		return h.check(C.fa_workspace_size(h.raw, desc, C.int32_t(op), &bytes))
	})
	return uint64(bytes), err
}

func (h *Handle) ask(a *Attention, question func(*C.fa_attention_desc_t) error) error {
	if err := h.enter(); err != nil {
		return err
	}
	defer h.mutex.Unlock()
	if a == nil {
		return &Error{InvalidArgument, "the attention is nil"}
	}
	desc := a.descriptor()
	return question(&desc)
}

// Version of the library that runs: major * 10000 + minor * 100 + patch.
func Version() int { return int(C.fa_version()) }

// AlibiSlopes gives the slopes of ALiBi; maxBias 0: the usual 8.
func AlibiSlopes(heads int, maxBias float32) ([]float32, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	slopes := make([]float32, max(heads, 1))
	status := C.fa_alibi_slopes(C.int64_t(heads), C.float(maxBias), (*C.float)(unsafe.Pointer(&slopes[0])))
	if status != C.FA_OK {
		return nil, &Error{Status(status), C.GoString(C.fa_last_error(nil))}
	}
	return slopes[:heads], nil
}

func max(a, b int) int {
	if a > b {
		return a
	}
	return b
}
