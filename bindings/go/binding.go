package flashattn

/*
#include "calls.h"

static fa_attention_desc_t plain(void) {
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    return desc;
}
static fa_forward_args_t no_forward(void) {
    fa_forward_args_t args = FA_FORWARD_ARGS_INIT;
    return args;
}
static fa_backward_args_t no_backward(void) {
    fa_backward_args_t args = FA_BACKWARD_ARGS_INIT;
    return args;
}
static fa_merge_args_t no_merge(void) {
    fa_merge_args_t args = FA_MERGE_ARGS_INIT;
    return args;
}
static fa_rotary_args_t no_rotary(void) {
    fa_rotary_args_t args = FA_ROTARY_ARGS_INIT;
    return args;
}
static fa_append_kv_args_t no_append_kv(void) {
    fa_append_kv_args_t args = FA_APPEND_KV_ARGS_INIT;
    return args;
}
*/
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"
)

// Bits of values that Go has no type for.
type (
	F16  uint16 // an IEEE half
	BF16 uint16 // a bfloat16: the upper half of a float32
	E4M3 uint8  // an 8-bit float with 4 exponent bits
	E5M2 uint8  // an 8-bit float with 5 exponent bits
)

// Element is a type whose slices can be tensors.
type Element interface {
	float32 | F16 | BF16 | E4M3 | E5M2 | int8
}

// Tensor is a slice with its element type. The zero Tensor is not given.
type Tensor struct {
	data  unsafe.Pointer
	bytes uint64
	dtype Dtype
}

// What an empty slice points to: the library tells a pointer that is given from one that is not.
var nothing [1]uint64

// Of makes a tensor that shares the memory of a slice. If the slice is nil, the tensor is not given.
func Of[T Element](x []T) Tensor {
	var dtype Dtype
	switch any(x).(type) {
	case []float32:
		dtype = DtypeF32
	case []F16:
		dtype = DtypeF16
	case []BF16:
		dtype = DtypeBf16
	case []E4M3:
		dtype = DtypeE4m3
	case []E5M2:
		dtype = DtypeE5m2
	case []int8:
		dtype = DtypeI8
	}
	return tensorOf(dtype, x)
}

// Raw makes a tensor of bytes that hold any type, such as the blocks of DtypeQ80.
func Raw(dtype Dtype, bytes []byte) Tensor { return tensorOf(dtype, bytes) }

func tensorOf[T any](dtype Dtype, x []T) Tensor {
	switch {
	case x == nil:
		return Tensor{}
	case len(x) == 0:
		return Tensor{unsafe.Pointer(&nothing), 0, dtype}
	}
	return Tensor{unsafe.Pointer(&x[0]), uint64(len(x)) * uint64(unsafe.Sizeof(x[0])), dtype}
}

// Window keeps the keys from Left before to Right after a row's position; −1 keeps all.
type Window struct {
	Left, Right int64
}

func (a *Attention) descriptor() C.fa_attention_desc_t {
	desc := C.plain()
	a.setFields(&desc)
	desc.operands = C.uint64_t(a.Operands)
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

func strides2(x [2]int64) (out [2]C.int64_t) {
	for i := range x {
		out[i] = C.int64_t(x[i])
	}
	return
}

func strides3(x [3]int64) (out [3]C.int64_t) {
	for i := range x {
		out[i] = C.int64_t(x[i])
	}
	return
}

func strides4(x [4]int64) (out [4]C.int64_t) {
	for i := range x {
		out[i] = C.int64_t(x[i])
	}
	return
}

func strides5(x [5]int64) (out [5]C.int64_t) {
	for i := range x {
		out[i] = C.int64_t(x[i])
	}
	return
}

// A call in the making: the descriptor, the pointers of its args in their order, and how much memory each has behind it.
type binding struct {
	desc         C.fa_attention_desc_t
	pointers     []unsafe.Pointer
	rooms        []room
	op           C.int32_t
	args         unsafe.Pointer
	f32Gradients bool
	fault        error
}

type room struct {
	name  string
	op    C.int32_t
	args  unsafe.Pointer
	field uintptr
	bytes uint64
}

func (b *binding) begin(op C.int32_t, args unsafe.Pointer) { b.op, b.args = op, args }

func either[T any](first bool, one, other T) T {
	if first {
		return one
	}
	return other
}

func (b *binding) pointer(name string, field uintptr, operand C.uint64_t, data unsafe.Pointer, bytes uint64) {
	b.pointers = append(b.pointers, data)
	if data != nil {
		b.desc.operands |= operand
		b.rooms = append(b.rooms, room{name, b.op, b.args, field, bytes})
	}
}

func bindSlice[T any](b *binding, name string, field uintptr, operand C.uint64_t, x []T) {
	t := tensorOf(0, x)
	b.pointer(name, field, operand, t.data, t.bytes)
}

// declared: the descriptor's field that has the tensor's type.
func (b *binding) tensor(name string, field uintptr, operand C.uint64_t, x Tensor, declared *C.int32_t, written bool) {
	b.pointer(name, field, operand, x.data, x.bytes)
	if x.data == nil {
		return
	}
	expected := *declared
	// The descriptor says the type of every output except the gradients of a backward that accumulates.
	if b.f32Gradients && written && b.op == C.FA_OP_BACKWARD {
		expected = C.FA_F32
	}
	if expected == 0 {
		*declared = C.int32_t(x.dtype)
	} else if expected != C.int32_t(x.dtype) && b.fault == nil {
		b.fault = &Error{InvalidArgument, fmt.Sprintf("%s has type %s: expected %s", name, x.dtype, Dtype(expected))}
	}
}

func (d Dtype) String() string {
	if name := C.fa_dtype_name(C.int32_t(d)); name != nil {
		return C.GoString(name)
	}
	return fmt.Sprintf("number %d", int32(d))
}

// Asks the library how far it would go behind each pointer.
func (b *binding) check() error {
	if b.fault != nil {
		return b.fault
	}
	// The sentence of a call without a handle belongs to the thread that made it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, r := range b.rooms {
		var used C.uint64_t
		if status := C.fa_extent(&b.desc, r.op, r.args, C.uint32_t(r.field), &used); status != C.FA_OK {
			return &Error{Status(status), C.GoString(C.fa_last_error(nil))}
		}
		if uint64(used) > r.bytes {
			return &Error{InvalidArgument, fmt.Sprintf("%s has %d bytes: the call would use %d", r.name, r.bytes, uint64(used))}
		}
	}
	return nil
}

// Makes a call: bind fills the binding, run hands it to the library.
func (h *Handle) call(a *Attention, bind func(*binding) error, run func(*binding) C.fa_status_t) error {
	if err := h.enter(); err != nil {
		return err
	}
	defer h.mutex.Unlock()
	if a == nil {
		return &Error{InvalidArgument, "the attention is nil"}
	}
	b := &binding{desc: a.descriptor()}
	if err := bind(b); err != nil {
		return err
	}
	if err := b.check(); err != nil {
		return err
	}
	return h.check(run(b))
}

var errNil = &Error{InvalidArgument, "the args are nil"}

// Forward computes attention.
func (h *Handle) Forward(a *Attention, x *Forward) error {
	args := C.no_forward()
	return h.call(a, func(b *binding) error {
		if x == nil {
			return errNil
		}
		x.bind(b, &args)
		return nil
	}, func(b *binding) C.fa_status_t { return runForward(h.raw, &b.desc, &args, b.pointers) })
}

// Backward computes gradients. forward has the operands of the forward, with O and LSE as it wrote them.
func (h *Handle) Backward(a *Attention, forward *Forward, x *Backward) error {
	inputs, args := C.no_forward(), C.no_backward()
	return h.call(a, func(b *binding) error {
		if forward == nil || x == nil {
			return errNil
		}
		if x.Accumulate {
			args.flags |= C.FA_BACKWARD_ACCUMULATE
		}
		b.f32Gradients = x.Accumulate
		forward.bind(b, &inputs)
		x.bind(b, &args)
		return nil
	}, func(b *binding) C.fa_status_t { return runBackward(h.raw, &b.desc, &inputs, &args, b.pointers) })
}

// Merge merges partial results over disjoint sets of keys into the whole.
func (h *Handle) Merge(a *Attention, x *Merge) error {
	args := C.no_merge()
	return h.call(a, func(b *binding) error {
		if x == nil {
			return errNil
		}
		if x.Accumulate {
			args.flags |= C.FA_MERGE_ACCUMULATE
		}
		x.bind(b, &args)
		return nil
	}, func(b *binding) C.fa_status_t { return runMerge(h.raw, &b.desc, &args, b.pointers) })
}

// Rotary applies rotary embedding to a tensor of q's shape, with OfK of k's. X and Out may be the same.
func (h *Handle) Rotary(a *Attention, x *Rotary) error {
	args := C.no_rotary()
	return h.call(a, func(b *binding) error {
		if x == nil {
			return errNil
		}
		if x.Interleaved {
			args.flags |= C.FA_ROTARY_INTERLEAVED
		}
		if x.OfK {
			args.flags |= C.FA_ROTARY_OF_K
		}
		x.bind(b, &args)
		return nil
	}, func(b *binding) C.fa_status_t { return runRotary(h.raw, &b.desc, &args, b.pointers) })
}

// AppendKV writes new tokens into the cache.
func (h *Handle) AppendKV(a *Attention, x *AppendKV) error {
	args := C.no_append_kv()
	return h.call(a, func(b *binding) error {
		if x == nil {
			return errNil
		}
		if x.Interleaved {
			args.flags |= C.FA_ROTARY_INTERLEAVED
		}
		if x.DynamicScale {
			args.flags |= C.FA_APPEND_DYNAMIC_SCALE
		}
		x.bind(b, &args)
		return nil
	}, func(b *binding) C.fa_status_t { return runAppendKV(h.raw, &b.desc, &args, b.pointers) })
}
