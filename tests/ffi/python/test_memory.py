"""What a call copies: nothing of an operand that the library can address, and of one that is broadcast never what it is broadcast to. The
peak of the process's memory tells. Skipped where Linux does not let a process set its peak back."""

import ctypes
import unittest

import flashattn
import numpy as np

try:
    import torch
except ImportError:
    torch = None
else:
    from flashattn.torch import attention as torch_attention
try:
    import jax
    import jax.numpy as jnp
    from flashattn import jax as flashattn_jax
except ImportError:
    jax = None

MB = 1 << 20
BATCH, HEADS, ROWS, KEYS, DIM = 16, 32, 32, 1024, 8
PAIRS = (BATCH, HEADS, ROWS, KEYS)  # a mask of 16 MB, a bias of 64 MB
ROOM = 6 * MB  # for scratch memory and what the frameworks do beside
RNG = np.random.default_rng(1)


def resident(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def set_back():
    """Gives back what is free, and sets the peak of the process's memory to what it has now."""
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        with open("/proc/self/clear_refs", "w") as peak:
            peak.write("5")
    except OSError:
        return False
    return True


def floats(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


def plain():
    return {"q": floats(BATCH, ROWS, HEADS, DIM), "k": floats(BATCH, KEYS, HEADS, DIM), "v": floats(BATCH, KEYS, HEADS, DIM)}


def broadcast():
    """By a name, the keywords of a call with an operand that lies in a few kilobytes, and is broadcast to 16 MB or more."""
    tensors, row, wide = plain(), floats(ROWS, KEYS), floats(ROWS, 2 * KEYS)
    masks = {
        "bool": row > -1,
        "uint8": (row > -1).astype(np.uint8) * 6,
        "a part of a wider one": (wide > -1)[:, :KEYS],
        "every other key": (wide > -1)[:, ::2],
    }
    biases = {"float32": row, "float16": row.astype(np.float16), "keys apart": np.asfortranarray(row), "every other key": wide[:, ::2]}
    for operand, found in (("mask", masks), ("bias", biases)):
        for name, x in found.items():
            yield f"{operand}, {name}", {**tensors, operand: np.broadcast_to(x, PAIRS)}
    many, rows = 8 * BATCH, 4 * ROWS
    keys = floats(1, KEYS, HEADS, DIM)
    for name, x in (("k and v", keys), ("k and v, dims apart", np.asfortranarray(keys))):
        x = np.broadcast_to(x, (many, KEYS, HEADS, DIM))
        yield name, {"q": floats(many, 1, HEADS, DIM), "k": x, "v": x}
    few = {"q": floats(1, rows, HEADS, DIM), "k": floats(1, 64, HEADS, DIM), "v": floats(1, 64, HEADS, DIM)}
    few = {name: np.broadcast_to(x, (many, *x.shape[1:])) for name, x in few.items()}
    begins = np.arange(0, 64, 8)
    for dtype in (np.int32, np.int64):
        ranges = np.stack([begins, begins + 4], -1).astype(dtype)
        yield f"key_ranges, {dtype.__name__}", {**few, "key_ranges": np.broadcast_to(ranges, (many, HEADS, rows, 8, 2))}
        keys = RNG.permuted(np.tile(np.arange(64), (rows, 1)), axis=1)[:, :32].astype(dtype)
        lists = {"key_list": keys[:, :16], "full_list": keys[:, 16:], "key_list_count": np.full(rows, 16, dtype)}
        yield f"lists, {dtype.__name__}", {**few, **{name: np.broadcast_to(x, (many, HEADS, *x.shape)) for name, x in lists.items()}}


@unittest.skipUnless(set_back(), "the peak of a process's memory cannot be set back here")
class Memory(unittest.TestCase):
    def assert_in_place(self, name, call):
        """call: returns its results' bytes. The first call makes handles and their scratch memory."""
        call()
        set_back()
        before = resident("VmRSS")
        made = call()
        with self.subTest(operand=name):
            self.assertLess(resident("VmHWM") - before - made, ROOM)

    def test_numpy(self):
        for name, given in broadcast():
            self.assert_in_place(name, lambda: flashattn.attention(**given).nbytes)
        whole = {**plain(), "mask": floats(*PAIRS) > -1}
        self.assert_in_place("a whole mask", lambda: flashattn.attention(**whole).nbytes)

    def test_numpy_that_must_be_converted(self):
        bias = np.broadcast_to(RNG.standard_normal((ROWS, KEYS)), PAIRS)
        given = plain()
        self.assert_in_place("bias, float64", lambda: flashattn.attention(**given, bias=bias).nbytes)
        shape = (1024, 4096, 1)
        eight = {"q": floats(1024, 1, 1, 8), "k": np.broadcast_to(np.ones((1, 1, 1, 8), np.int8), (*shape, 8))}
        for dtype in (np.float32, np.float64):
            factors = np.broadcast_to(np.asarray(0.5, dtype), shape)
            call = lambda **more: flashattn.attention(**eight, v=None, k_descale=factors, **more).nbytes  # noqa: B023, E731
            self.assert_in_place(f"k_descale, {dtype.__name__}", call)
            self.assert_in_place(f"k_shift, {dtype.__name__}", lambda: call(k_shift=factors))  # noqa: B023

    def test_numpy_backward(self):
        given = plain()
        out, lse = flashattn.attention(**given, return_lse=True)
        dout = np.broadcast_to(np.float32(1), out.shape)
        strided = {"dout": dout, "out": out, "lse": np.asfortranarray(lse), "dlse": np.broadcast_to(np.float32(1), lse.shape)}
        gradients = flashattn.attention_backward(**strided, **given)
        dense = {name: np.ascontiguousarray(x) for name, x in strided.items()}
        for a, b in zip(gradients, flashattn.attention_backward(**dense, **given)):
            np.testing.assert_array_equal(a, b)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torch(self):
        for name, given in broadcast():
            tensors = {name: torch.from_numpy(x) for name, x in given.items()}
            self.assert_in_place(name, lambda: torch_attention(**tensors).nbytes)
        self.assert_in_place("under sdpa()", self.sdpa_call())
        whole = {name: torch.from_numpy(x) for name, x in {**plain(), "mask": floats(*PAIRS) > -1}.items()}
        self.assert_in_place("a whole mask", lambda: torch_attention(**whole).nbytes)
        whole["mask"] = whole["mask"].view(torch.uint8)
        self.assert_in_place("a whole mask, uint8", lambda: torch_attention(**whole).nbytes)

    def sdpa_call(self):
        q, k, v = (torch.from_numpy(x).transpose(1, 2) for x in plain().values())
        mask = torch.ones(ROWS, KEYS, dtype=torch.bool).tril().expand(PAIRS)

        def call():
            with flashattn.torch.sdpa(fallback=False):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).nbytes

        return call

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torch_backward(self):
        q = torch.randn(1, 4096, 128, 16, requires_grad=True)  # 32 MB, as out
        k, v = (torch.randn(1, 1, 128, 16) for _ in "kv")

        def call():
            (gradient,) = torch.autograd.grad(torch_attention(q, k, v).sum(), q)  # whose dout is one number, broadcast
            return 2 * gradient.nbytes

        self.assert_in_place("dout", call)

    @unittest.skipIf(jax is None, "JAX or its handlers are not installed")
    def test_jax(self):
        given = {**plain(), "mask": floats(*PAIRS) > -1}
        arrays = {name: jnp.asarray(x) for name, x in given.items()}
        compiled = jax.jit(flashattn_jax.attention)
        for name, dtype in (("mask of bool", jnp.bool_), ("mask of uint8", jnp.uint8)):
            arrays["mask"] = jax.block_until_ready(arrays["mask"].astype(dtype))
            for way, function in (("at once", flashattn_jax.attention), ("under jit", compiled)):
                self.assert_in_place(f"{name}, {way}", lambda: jax.block_until_ready(function(**arrays)).nbytes)


if __name__ == "__main__":
    unittest.main()
