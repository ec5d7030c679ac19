package flashattn

/*
#include "calls.h"

static fa_device_info_t unknown_device(void) {
    fa_device_info_t info = {0};
    info.struct_size = sizeof info;
    return info;
}

enum { REASON_MAX = FA_TEXT_MAX };
*/
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"
)

// BackendStatus says whether a backend can be used here: nil, or the error that New would give, with the reason.
func BackendStatus(backend Backend) error {
	text := make([]C.char, C.REASON_MAX)
	if status := C.fa_backend_status(C.int32_t(backend), &text[0], C.REASON_MAX); status != C.FA_OK {
		return &Error{Status(status), C.GoString(&text[0])}
	}
	return nil
}

// BackendSupports says how a call would be computed on this backend and device, with everything else at its default, or why it is
// refused. Set types and Operands in the Attention.
func BackendSupports(backend Backend, device int32, a *Attention, op Op) (string, error) {
	if a == nil {
		return "", &Error{InvalidArgument, "the attention is nil"}
	}
	desc := a.descriptor()
	text := make([]C.char, C.REASON_MAX)
	status := C.fa_backend_supports(C.int32_t(backend), C.int32_t(device), &desc, C.int32_t(op), &text[0], C.REASON_MAX)
	if status != C.FA_OK {
		return "", &Error{Status(status), C.GoString(&text[0])}
	}
	return C.GoString(&text[0]), nil
}

// Device is what a backend computes on.
type Device struct {
	Backend      Backend
	Index        int32  // Options.Device
	ComputeUnits int32  // CPU: hardware threads that this process may use; GPU: multiprocessors
	MemoryBytes  uint64 // memory of the device
	Name         string
	Arch         string // CPU: the best instruction set that the library can use; GPU: its architecture
}

// Devices lists the devices of a backend. If the backend is not usable here, it returns an error.
func Devices(backend Backend) ([]Device, error) {
	// The sentence belongs to the thread that asked.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var count C.int32_t
	if status := C.fa_device_count(C.int32_t(backend), &count); status != C.FA_OK {
		return nil, &Error{Status(status), C.GoString(C.fa_last_error(nil))}
	}
	devices := make([]Device, count)
	for i := range devices {
		info := C.unknown_device()
		if status := C.fa_device_info(C.int32_t(backend), C.int32_t(i), &info); status != C.FA_OK {
			return nil, &Error{Status(status), C.GoString(C.fa_last_error(nil))}
		}
		devices[i] = Device{Backend(info.backend), int32(info.device), int32(info.compute_units), uint64(info.memory_bytes),
			C.GoString(&info.name[0]), C.GoString(&info.arch[0])}
	}
	return devices, nil
}

// DropoutMask writes which keys dropout keeps, the same on every backend: keep[r * keys + c] is for row + r and key + c of the head
// batch * HeadsQ + head, in a Forward with this p, seed and offset.
func DropoutMask(keep []bool, p float32, seed, offset uint64, batchHead, row, rows, key, keys int64) error {
	if rows > 0 && keys > 0 && int64(len(keep))/keys < rows {
		return &Error{InvalidArgument, fmt.Sprintf("keep has %d elements: expected rows * keys, %d * %d", len(keep), rows, keys)}
	}
	var to *C.uint8_t // a bool is a byte of 0 or 1
	if len(keep) > 0 {
		to = (*C.uint8_t)(unsafe.Pointer(&keep[0]))
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	status := C.fa_dropout_mask(C.float(p), C.uint64_t(seed), C.uint64_t(offset), C.int64_t(batchHead), C.int64_t(row), C.int64_t(rows),
		C.int64_t(key), C.int64_t(keys), to)
	if status != C.FA_OK {
		return &Error{Status(status), C.GoString(C.fa_last_error(nil))}
	}
	return nil
}
