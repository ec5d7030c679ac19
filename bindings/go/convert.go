package flashattn

/*
#include "calls.h"

// One conversion, whose pointers cgo lets C see only as arguments of a call.
static fa_status_t run_convert(fa_handle_t h, const fa_conversion_t* blank, const void* x, const void* out) {
    fa_conversion_t conversion = *blank;
    conversion.x = x;
    conversion.out = (void*)out;
    return fa_convert(h, &conversion, 1, 0, NULL);
}
*/
import "C"

import (
	"fmt"
	"math"
	"math/bits"
)

// Conversion copies, converts, sums or clears a tensor with strides. Sizes count elements. Strides count units, and the last is 1.
type Conversion struct {
	// X is what is read; not given: zeros
	X Tensor
	// Out is what is written
	Out Tensor
	// Size: (batch, row, head, dim), or any other four dimensions; 1 for a dimension that is not used
	Size               [4]int64
	XStride, OutStride [4]int64
	// Accumulate: X, which is float32, F16 or BF16, is added to the values of Out, which is float32
	Accumulate bool
}

// reach is the number of bytes to the end of the last element, at most what 64 bits hold; 0 for a conversion that the library refuses.
func reach(dtype Dtype, size, stride [4]int64) uint64 {
	var elements, unit C.int64_t
	if C.fa_dtype_unit(C.int32_t(dtype), &elements, &unit) != C.FA_OK {
		return 0
	}
	size[3] /= int64(elements)
	var last uint64
	for i, n := range size {
		if n <= 0 || stride[i] < 0 {
			return 0
		}
		over, steps := bits.Mul64(uint64(n-1), uint64(stride[i]))
		var carry uint64
		last, carry = bits.Add64(last, steps, 0)
		if over != 0 || carry != 0 {
			return math.MaxUint64
		}
	}
	over, reached := bits.Mul64(last, uint64(unit))
	reached, carry := bits.Add64(reached, uint64(unit), 0)
	if over != 0 || carry != 0 {
		return math.MaxUint64
	}
	return reached
}

// Convert performs the conversion.
func (h *Handle) Convert(x *Conversion) error {
	if err := h.enter(); err != nil {
		return err
	}
	defer h.mutex.Unlock()
	if x == nil {
		return &Error{InvalidArgument, "the conversion is nil"}
	}
	c := *x // what is checked is what is done
	blank := C.fa_conversion_t{size: strides4(c.Size), x_stride: strides4(c.XStride), out_stride: strides4(c.OutStride),
		x_dtype: C.int32_t(c.X.dtype), out_dtype: C.int32_t(c.Out.dtype)}
	if c.Accumulate {
		blank.flags = C.FA_CONVERT_ACCUMULATE
	}
	for _, side := range []struct {
		name   string
		tensor Tensor
		stride [4]int64
	}{{"x", c.X, c.XStride}, {"out", c.Out, c.OutStride}} {
		if side.tensor.data == nil {
			continue // no x is zeros, and no out the library refuses
		}
		if used := reach(side.tensor.dtype, c.Size, side.stride); used > side.tensor.bytes {
			return &Error{InvalidArgument, fmt.Sprintf("%s has %d bytes: the call would use %d", side.name, side.tensor.bytes, used)}
		}
	}
	return h.check(C.run_convert(h.raw, &blank, c.X.data, c.Out.data))
}
