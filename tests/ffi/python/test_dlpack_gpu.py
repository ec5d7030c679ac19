"""Arrays of a GPU, without torch: a library of the test's own that speaks as CuPy does, on the emulator, which takes HIP's place. While
the package prepares a call, the arrays' memory cannot be touched: who looks at an element ends the process."""

import contextlib
import ctypes
import mmap
import os
import sys
import unittest
from unittest import mock

import flashattn
import numpy as np
from flashattn import _dlpack, _request
from support import LIMITS, Case, ml_dtypes

_SIZE = 1 << 24
_libc = ctypes.CDLL(None, use_errno=True)


class Memory:
    """What stands for the GPU's: closed to the process but during a call of the library."""

    def __init__(self):
        self.map = mmap.mmap(-1, _SIZE)
        self.bytes = np.frombuffer(self.map, np.uint8)
        self.used = 0

    def open(self, is_open):
        access = mmap.PROT_READ | mmap.PROT_WRITE if is_open else 0
        if _libc.mprotect(ctypes.c_void_p(self.bytes.ctypes.data), ctypes.c_size_t(_SIZE), access):
            raise OSError(ctypes.get_errno(), "mprotect")

    def array(self, like):
        """A copy of an array, or of the whole that it is a view of, with its strides."""
        whole = like if like.base is None or 0 in like.strides else like.base
        begin = -(-self.used // 256) * 256
        self.used = begin + whole.nbytes
        assert self.used <= _SIZE
        mine = self.bytes[begin : self.used].view(whole.dtype).reshape(whole.shape)
        mine[...] = whole
        offset = like.ctypes.data - whole.ctypes.data
        return np.ndarray(like.shape, like.dtype, self.bytes, begin + offset, like.strides)


memory = Memory()


class OnGpu:
    """An array of that library, in memory of DLPack's kind for ROCm. stream: that in which the library works."""

    stream = 7

    def __init__(self, array, device=(10, 0)):
        self.array, self.device, self.asked = array, device, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream):  # as CuPy 13's
        self.asked.append(stream)
        return _dlpack._Export(self.array).__dlpack__()

    @property
    def __cuda_array_interface__(self):
        if self.stream is None:
            raise AttributeError("HIP has no such interface")
        return {"version": 3, "stream": self.stream}

    def __array__(self, *_, **__):
        raise AssertionError("copied")


def empty(shape, dtype):
    return OnGpu(np.empty(shape, dtype), OnGpu.made_on)


def full(shape, value, dtype):
    return OnGpu(np.full(shape, value, dtype), OnGpu.made_on)


OnGpu.made_on = (10, 0)


@unittest.skipUnless(os.environ.get("FLASHATTN_BACKEND_DIR"), "no emulator in this build")
class Gpu(Case):
    @classmethod
    def setUpClass(cls):
        hip = flashattn.backends()["hip"]
        if [device.name for device in hip.devices] != ["GPU emulator"]:  # on a GPU the addresses here would mean nothing
            raise AssertionError(f"HIP's place has not the emulator: {hip}")

    def setUp(self):
        memory.used = 0
        memory.open(True)
        self.random = np.random.default_rng(11)

    def tearDown(self):
        memory.open(True)

    def normal(self, *shape, dtype=np.float32):
        return self.random.standard_normal(shape, np.float32).astype(dtype)

    def call(self, *arrays, function=flashattn.attention, **options):
        """The function on copies of the arrays, in closed memory that is opened where the library is called."""
        put = lambda x: OnGpu(memory.array(x)) if isinstance(x, np.ndarray) else x  # noqa: E731
        arrays, options = [put(x) for x in arrays], {name: put(x) for name, x in options.items()}
        self.requests = []

        def opened(run):
            def running(request, handle):
                self.requests.append(request)
                memory.open(True)
                run(request, handle)

            return running

        memory.open(False)
        try:
            with contextlib.ExitStack() as stack:
                for kind in (_request.Request, _request.Conversion):
                    stack.enter_context(mock.patch.object(kind, "run", opened(kind.run)))
                stack.enter_context(mock.patch.dict(sys.modules, torch=None))  # not to be imported
                result = function(*arrays, **options)
        finally:
            memory.open(True)
        self.given = [x for x in (*arrays, *options.values()) if isinstance(x, OnGpu)]
        return result

    def same(self, *arrays, function=flashattn.attention, **options):
        """As the CPU has it on NumPy's arrays."""
        found = self.call(*arrays, function=function, **options)
        wanted = function(*arrays, **options, backend="cpu")
        found, wanted = (x if isinstance(x, tuple) else (x,) for x in (found, wanted))
        self.assertEqual(len(found), len(wanted))
        for got, want in zip(found, wanted):
            self.assertIsInstance(got, OnGpu)
            self.assertEqual((got.array.shape, got.array.dtype), (want.shape, want.dtype))
            finite = np.isfinite(want.astype(np.float32))
            np.testing.assert_array_equal(np.isfinite(got.array.astype(np.float32)), finite)
            name = str(arrays[0].dtype)
            self.assert_out(got.array[finite], want[finite].astype(np.float64), 2 * LIMITS[name if name in LIMITS else "float32"])
        return found

    def qkv(self, dtype=np.float32, rows=9, keys=20):
        return self.normal(2, rows, 4, 16, dtype=dtype), self.normal(2, keys, 2, 16, dtype=dtype), self.normal(2, keys, 2, 12, dtype=dtype)

    def test_types_and_outputs(self):
        for dtype in (np.float32, np.float16, *([ml_dtypes.bfloat16] if ml_dtypes else [])):
            with self.subTest(dtype=dtype):
                self.same(*self.qkv(dtype), causal="bottom-right", return_lse=True)
        self.same(*self.qkv(np.float16), out_dtype="float32", return_lse=True, return_scores="biased", softcap=3.0)
        self.assertIsInstance(self.call(*self.qkv()), OnGpu)

    def test_strides(self):
        q, k, v = self.qkv()
        self.same(q[:, ::2], k[:, 3:], v[:, 3:])
        self.same(q.transpose(0, 2, 1, 3), k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3), layout="bhsd")
        self.same(q, np.broadcast_to(k[:1], k.shape), v)
        for name, x in (("q", q[:, ::-1]), ("q", q[..., ::2]), ("v", v[..., ::-1])):
            arrays = {"q": q, "k": k, "v": v, name: x}
            with self.assertRaisesRegex(ValueError, f"{name} has shape .*: on a GPU nothing is copied"):
                self.call(*arrays.values())

    def test_operands(self):
        q, k, v = self.qkv()
        lengths = np.array([15, 20], np.int32)
        self.same(q, k, v, seqused_k=lengths, leftpad_k=np.array([2, 0], np.int32), causal="bottom-right", return_lse=True)
        self.same(q, k, v, causal="explicit", causal_offset=np.array([3, 7], np.int32))
        self.same(q, k, v, bias=self.normal(4, 9, 20), bias_scale=self.normal(4), sinks=self.normal(4))
        self.same(q, k, v, bias=self.normal(9, 20, dtype=np.float16), mask=(self.random.random((2, 1, 9, 20)) < 0.7).astype(np.uint8))
        self.same(q, k, v, alignment="bottom-right", alibi_slopes=flashattn.alibi_slopes(4))
        self.same(q, k, v, k_descale=np.abs(self.normal(2, 20, 2)), window=(5, 2), alignment="top-left")
        ranges = np.sort(self.random.integers(0, 20, (2, 4, 9, 1, 2)), -1).astype(np.int32)
        self.same(q, k, v, key_ranges=ranges, return_lse=True)
        lists = np.tile(np.array([1, -1], np.int32), (2, 4, 1, 1))
        self.same(q, k, v, key_list=lists, list_rows=16, list_keys=16)
        self.same(q, k, v, o_scale=np.array(0.3, np.float32))
        self.same(q, k, v, q_tail=self.normal(2, 9, 4, 8), k_tail=self.normal(2, 20, 1, 8))

    def test_packed_and_paged(self):
        cu = np.array([0, 4, 4, 11], np.int32)
        q, k, v = self.normal(13, 4, 16), self.normal(13, 2, 16), self.normal(13, 2, 16)
        bounds = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
        self.same(q, k, v, **bounds, max_seqlen_q=7, max_seqlen_k=7, causal="top-left", return_lse=True)
        with self.assertRaisesRegex(ValueError, "max_seqlen_k is None: expected a bound of the lengths"):
            self.call(q, k, v, **bounds, max_seqlen_q=7)
        table = np.array([[5, 1, 0], [2, 4, 3]], np.int32)
        pages = self.normal(6, 8, 2, 16), self.normal(6, 8, 2, 16)
        self.same(self.normal(2, 1, 4, 16), *pages, page_table=table, seqused_k=np.array([17, 24], np.int32), return_lse=True)
        self.same(self.normal(1, 1, 4, 16), *pages, page_table=table[1:].copy())

    def test_gradients(self):
        for dtype in (np.float32, np.float16):
            q, k, v = self.qkv(dtype)
            options = {"causal": "bottom-right", "sinks": self.normal(4), "bias": self.normal(4, 9, 20)}
            out, lse = flashattn.attention(q, k, v, **options, return_lse=True)
            more = {"return_dbias": True, "return_dsinks": True, "dlse": self.normal(*lse.shape)}
            dout = self.normal(*out.shape, dtype=dtype)
            found = self.same(dout, q, k, v, out, lse, function=flashattn.attention_backward, **options, **more)
            self.assertEqual(len(found), 5)
        self.assertGreater(self.requests[-1].args.workspace_size, 0)
        packed = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v)]
        cu = {"cu_seqlens_q": np.array([0, 7, 18], np.int32), "cu_seqlens_k": np.array([0, 25, 40], np.int32), "max_seqlen_q": 11,
              "max_seqlen_k": 25}
        out, lse = flashattn.attention(*packed, **cu, return_lse=True)
        self.same(out, *packed, out, lse, function=flashattn.attention_backward, **cu)

    def test_cache(self):
        """Tokens are appended to pages, turned by a rotary embedding, and attended to."""
        cache = [np.zeros((6, 4, 2, 16), np.float16) for _ in "kv"]
        new = self.normal(2, 3, 2, 16, dtype=np.float16), self.normal(2, 3, 2, 16, dtype=np.float16)
        where = {"page_table": np.array([[5, 1], [2, 4]], np.int32), "seqused_k": np.array([0, 4], np.int32)}
        angles = self.normal(8, 4)
        turn = {"cos": np.cos(angles), "sin": np.sin(angles)}
        self.assertIsNone(self.call(*new, *cache, function=flashattn.append_kv, **where, **turn))
        found = [x.array for x in self.given[2:4]]
        self.assertEqual([np.abs(x).max() for x in cache], [0, 0])
        flashattn.append_kv(*new, *cache, **where, **turn, backend="cpu")
        for got, want in zip(found, cache):
            self.assert_out(got, want.astype(np.float64), LIMITS["float16"])
        self.assertEqual({tuple(x.asked) for x in self.given}, {(7,)})
        scales = [np.zeros((6, 4, 2), np.float32) for _ in "kv"]
        cache = [np.zeros((6, 4, 2, 16), np.int8) for _ in "kv"]
        dynamic = {"k_descale": scales[0], "v_descale": scales[1], "dynamic_scale": True}
        self.call(*new, *cache, function=flashattn.append_kv, **where, **dynamic)
        given = self.given
        flashattn.append_kv(*new, *cache, **where, **dynamic, backend="cpu")
        for got, want in zip((x.array for x in (*given[2:4], *given[-2:])), (*cache, *scales)):
            np.testing.assert_array_equal(got, want)

    def test_conversions(self):
        for out, x in (
            (np.zeros((2, 3, 5, 8), np.float16).transpose(0, 2, 1, 3), self.normal(2, 5, 3, 8)),
            (np.zeros((6, 4), np.float32)[::2], self.normal(3, 4, dtype=np.float16)),
        ):
            self.call(out, x, function=flashattn.convert)
            flashattn.convert(out, x, backend="cpu")
            np.testing.assert_array_equal(self.given[0].array, out)
            self.assertEqual([x.asked for x in self.given], [[7]] * 2)
        self.assertEqual((self.requests[-1].args.flags, self.requests[-1].args.stream), (flashattn._abi.FA_ARGS_STREAM, 7))

    def test_what_a_gpu_finds_wrong(self):
        """A CPU refuses such a call."""
        q, k, v = self.qkv()
        word = np.zeros(1, np.uint32)
        self.same(q, k, v, seqused_k=np.array([3, 20], np.int32), device_status=word)
        self.assertEqual(self.given[-1].array[0], 0)
        self.call(q, k, v, seqused_k=np.array([3, 21], np.int32), device_status=word)
        self.assertEqual(self.given[-1].array[0], flashattn._abi.FA_BAD_LENGTH)
        with self.assertRaisesRegex(TypeError, "device_status has dtype int32: expected uint32 on a GPU"):
            self.call(q, k, v, device_status=np.zeros(1, np.int32))
        cache = [np.zeros((6, 4, 2, 16), np.float32) for _ in "kv"]
        where = {"page_table": np.array([[5, 1], [2, 6]], np.int32), "seqused_k": np.array([0, 4], np.int32), "device_status": word}
        self.call(self.normal(2, 3, 2, 16), self.normal(2, 3, 2, 16), *cache, function=flashattn.append_kv, **where)
        self.assertEqual(self.given[-1].array[0], flashattn._abi.FA_BAD_PAGE)
        with self.assertRaisesRegex(flashattn.InvalidArgumentError, "seqused_k"):
            flashattn.attention(q, k, v, seqused_k=np.array([3, 21], np.int32), device_status=word)
        with self.assertRaisesRegex(ValueError, r"device_status has shape \(2,\)"):
            flashattn.attention(q, k, v, device_status=np.zeros(2, np.uint32))
        self.assertEqual(word[0], 0)

    def test_streams(self):
        q, k, v = self.qkv()
        out = self.call(q, k, v)
        args = self.requests[-1].args
        self.assertEqual((args.flags, args.stream), (flashattn._abi.FA_ARGS_STREAM, 7))
        self.assertEqual([x.asked for x in (*self.given, out)], [[7]] * 4)
        self.assertGreaterEqual(args.workspace_size, 0)
        with mock.patch.object(OnGpu, "stream", None), mock.patch.object(flashattn.Handle, "call", autospec=True) as call:
            out = self.call(q, k, v)
        args = self.requests[-1].args
        self.assertEqual((args.flags, args.stream), (flashattn._abi.FA_ARGS_STREAM, None))
        self.assertEqual([x.asked for x in (*self.given, out)], [[0]] * 4)  # HIP's default stream, in DLPack's words
        self.assertEqual([x.args[1] for x in call.mock_calls][-2:], ["fa_forward_ex", "fa_synchronize"])

    def test_refusals(self):
        q, k, v = self.qkv()
        on_gpu = OnGpu(memory.array(q))
        for name, array in (("k", k), ("v", v), ("sinks", self.normal(4)), ("seqused_k", [3, 4])):
            others = {"k": OnGpu(memory.array(k)), "v": OnGpu(memory.array(v)), name: array}
            with self.assertRaisesRegex(TypeError, f"{name} is not where the others are: expected an array on ROCm device 0"):
                flashattn.attention(on_gpu, **others)
        with self.assertRaisesRegex(TypeError, "k is not where the others are"):
            flashattn.attention(on_gpu, OnGpu(k, (10, 1)), on_gpu)
        with self.assertRaisesRegex(TypeError, "argument 2 is on ROCm device 0: expected ordinary memory"):
            flashattn.attention(q, on_gpu, v)
        for name, array in (("bias", np.zeros((9, 20))), ("sinks", np.zeros(4)), ("seqused_k", np.zeros(2, np.int64))):
            with self.assertRaisesRegex(TypeError, f"{name} has dtype {array.dtype}: expected .* on a GPU"):
                self.call(q, k, v, **{name: array})
        with self.assertRaisesRegex(TypeError, "float64"):
            self.call(q.astype(np.float64), k, v)
        with self.assertRaisesRegex(ValueError, "seqused_k has shape .*: on a GPU nothing is copied, expected a dense array"):
            self.call(q, k, v, seqused_k=np.zeros(4, np.int32)[::2])
        with self.assertRaisesRegex(TypeError, "o_scale is not where the others are"):
            self.call(q, k, v, o_scale=0.3)
        with self.assertRaisesRegex(ValueError, r"causal_offset has shape \(\) .* expected a dense array"):
            self.call(q, k, v, causal="explicit", causal_offset=np.array(3, np.int32))
        with self.assertRaisesRegex(TypeError, r"^attention\(\) got an unexpected keyword argument 'attn_mask': expected mask"):
            self.call(q, k, v, attn_mask=np.ones((9, 20), bool))
        with self.assertRaisesRegex(TypeError, "k_shift is given: it is not taken"):
            self.call(q, k, v, k_descale=np.ones((2, 20, 2), np.float32), k_shift=np.ones((2, 20, 2), np.float32))
        with self.assertRaisesRegex(ValueError, "backend is 'cpu': expected 'hip'"):
            self.call(q, k, v, backend="cpu")
        with flashattn.Handle("cpu") as handle, self.assertRaisesRegex(ValueError, "backend is a handle of cpu"):
            self.call(q, k, v, backend=handle)
        with mock.patch.object(OnGpu, "made_on", (10, 1)), self.assertRaisesRegex(ValueError, "makes new ones on ROCm device 1"):
            self.call(q, k, v)
        with mock.patch.object(OnGpu, "__module__", "jaxlib.xla"), self.assertRaisesRegex(TypeError, "flashattn.jax takes these"):
            self.call(q, k, v)

    def test_a_handle_of_ones_own(self):
        q, k, v = self.qkv()
        with flashattn.Handle("hip", memory="device") as handle:
            found = self.call(q, k, v, backend=handle)
        self.assert_out(found.array, flashattn.attention(q, k, v, backend="cpu").astype(np.float64), LIMITS["float32"])


if __name__ == "__main__":
    unittest.main()
