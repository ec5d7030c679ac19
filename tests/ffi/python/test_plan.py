"""Calls that are prepared once, by `attention` itself or as a Plan: the same bits as the call that is not, whatever changes from one to
the next, and the same refusals."""

import gc
import multiprocessing
import threading
import unittest
import weakref
from unittest import mock

import flashattn
import numpy as np
from flashattn import Plan, _prepared
from support import ml_dtypes

RNG = np.random.default_rng(46)
plainly = flashattn.attention.__wrapped__  # as if every call were the first


def floats(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def dense(**more):
    return {"q": floats(2, 3, 4, 32), "k": floats(2, 9, 2, 32), "v": floats(2, 9, 2, 32), **more}


def packed(*lengths, **more):
    cu = np.cumsum([0, *lengths])
    return {**{name: floats(int(cu[-1]), 2, 32) for name in ("q", "k", "v")}, "cu_seqlens_q": cu, "cu_seqlens_k": cu, **more}


def pages(*table, **more):
    return {"q": floats(2, 1, 4, 32), "k": floats(6, 4, 2, 32), "v": floats(6, 4, 2, 32), "page_table": np.array(table), **more}


def results(function, given):
    """What a call gives, as bytes, or how it fails."""
    try:
        found = function(**given)
    except Exception as error:
        return type(error), str(error)
    return [(x.shape, x.dtype, x.tobytes()) for x in (found if isinstance(found, tuple) else (found,))]


def calls():
    """Calls of many kinds. Of each kind those that follow differ in what they hold alone."""
    for _ in range(2):
        yield dense()
        yield dense(causal="bottom-right", return_lse=True)
        yield dense(layout="bhsd", **{"q": floats(2, 4, 3, 32), "k": floats(2, 2, 9, 32), "v": floats(2, 2, 9, 32)})
        yield dense(mask=RNG.random((3, 9)) < 0.8, bias=floats(4, 1, 9), sinks=floats(4), softcap=3.0)
        yield dense(alibi_slopes=floats(4), alignment="bottom-right", bias_scale=floats(4), bias=floats(3, 9))
        yield dense(sinks=floats(4, dtype=np.float64), bias=floats(3, 9, dtype=np.float64), k_descale=floats(2, 9, 2, dtype=np.float64))
        yield dense(seqused_k=RNG.integers(0, 9, 2), return_scores="biased", return_lse=True)
        yield dense(seqused_k=[3, int(RNG.integers(0, 9))], causal="explicit", causal_offset=int(RNG.integers(0, 3)))
        yield dense(causal="explicit", causal_offset=RNG.integers(0, 4, 2).astype(np.int32), scale=0.25, window=[2, None])
        yield dense(dropout_p=0.4, dropout_seed=int(RNG.integers(1 << 60)), dropout_offset=np.int64(3))
        yield dense(k=floats(2, 9, 2, 32)[:, ::-1], v=floats(2, 9, 2, 64)[..., ::2])
        yield dense(key_ranges=np.sort(RNG.integers(0, 10, (3, 1, 2))), mask=np.True_, scale=np.float64(0.3))
        yield dense(o_scale=0.5, out_dtype=np.float16)
        yield packed(3, 0, 4)
        yield packed(1, 1, 5, return_lse=True, max_seqlen_k=6)
        yield pages([1, 0], [5, 2], seqused_k=RNG.integers(0, 8, 2))
        yield {**dense(), "v": None, "dim_v": 16}
        if ml_dtypes is not None:
            yield {name: x.astype(ml_dtypes.bfloat16) for name, x in dense().items()}
            yield dense(q=floats(2, 3, 4, 32, dtype=ml_dtypes.float8_e4m3fn), q_descale=floats(2, 1, 4))


class Repeated(unittest.TestCase):
    def setUp(self):
        fresh = mock.patch.object(_prepared, "CACHE", _prepared.Cache())
        fresh.start()
        self.addCleanup(fresh.stop)

    def assert_same(self, given, **names):
        with self.subTest(**names, **{name: getattr(x, "shape", x) for name, x in given.items()}):
            self.assertEqual(results(flashattn.attention, given), results(plainly, given))

    def test_a_call_again(self):
        for given in calls():
            self.assertIsInstance(results(plainly, given), list, given)
            self.assert_same(given)
        self.assertGreater(len(_prepared.CACHE._made), 10)

    def test_what_is_almost_the_same_call(self):
        """After a call, one that differs in a single thing which a signature might take for the same."""
        base = dense(q=floats(2, 3, 4, 32), k=floats(2, 9, 4, 32), v=floats(2, 9, 4, 32))
        q = base["q"]
        bytes_of_q = np.zeros(q.nbytes + 1, np.uint8)
        apart = np.ndarray(q.shape, q.dtype, bytes_of_q, 1)
        apart[...] = q
        read_only = q.copy()
        read_only.flags.writeable = False
        changes = [
            *({"q": x} for x in (q[:1], q[:, :2], q.astype(np.float16), q.astype(np.float64), q.astype(">f4"), apart, read_only)),
            *({"q": x} for x in (q[:, ::-1], np.asfortranarray(q), q.swapaxes(1, 2), q.tolist(), q.view(np.recarray), q[0], q[None])),
            *({"q": x} for x in (np.ma.array(q, mask=q > 0), np.broadcast_to(q[:1], q.shape), np.zeros((2, 0, 4, 32), np.float32))),
            *({"causal": x} for x in (None, False, 0, True, 1, "top-left", "bottom-right", np.str_("top-left"), "other", ["top-left"])),
            *({"scale": x} for x in (0.0, -0.0, 0, 1, 1.0, True, np.float32(1), np.float64(1), None, float("nan"), "1", 1j, 1e300)),
            *({"softcap": x} for x in (0.0, 0, False, 1, True, 1.0, -1, None)),
            *({"window": x} for x in (None, (1, 2), [1, 2], (1.0, 2), (True, 2), (None, 2), (-1, 2), (1, 2, 3), 5, np.array([1, 2]))),
            *({"chunk": x, "alignment": "top-left"} for x in (0, 0.0, False, 2, 2.0, np.int64(2), 1 << 70)),
            *({"dropout_p": 0.5, "dropout_seed": x} for x in (0, 1, True, -1, 1 << 64, 1.0, None, np.uint64(1))),
            *({"out_dtype": x} for x in (None, np.float32, "float32", np.dtype("f2"), np.float16, "other", float, 3)),
            *({"return_lse": x} for x in (False, True, 0, 1)),
            *({"layout": x} for x in ("bshd", "bhsd", "other", None)),
            *({"mask": x} for x in (None, True, np.True_, np.ones((9, 3), bool))),
            *({"mask": np.ones((3, 9), x)} for x in (bool, np.uint8, float)),
            *({"seqused_k": x} for x in (None, [1, 2], (1, 2), [1.0, 2.0], [[1, 2]], np.array([1, 2]), [1, 1 << 40], 3)),
            *({"seqused_k": np.array(x, np.int32)[::2]} for x in ([1, 0, 10], [1, 0, 2], [1, 0, -1])),
            *({"seqused_k": np.array([1, 2], x)} for x in (np.uint8, np.int32, ">i4", np.float32)),
            *({"seqused_k": x} for x in ([1, [2]], [1, 1 << 70], ["1", "2"], [], np.array([1, 2], object))),
            *({"cu_seqlens_k": x} for x in ([0.0, 9.0], [], 9, [0, 18])),
            *({"mask": x} for x in ([True] * 9, [[True] * 9] * 3, [[True] * 9, [True]], "mask")),
            *({"backend": x} for x in (None, "cpu", "auto", "none", 3)),
            *({"device_status": x} for x in (None, np.zeros(1, np.uint32))),
            *({"unknown": x} for x in (None, 1)),
        ]
        for change in changes:
            for _ in range(2):
                flashattn.attention(**base)
                self.assert_same({**base, **change}, change=change.keys())

    def test_arguments_by_place_and_by_name(self):
        q, k, v = dense().values()
        want = plainly(q, k, v)
        for _ in range(2):
            for arguments, named in (((q, k, v), {}), ((q, k), {"v": v}), ((), {"v": v, "k": k, "q": q})):
                np.testing.assert_array_equal(flashattn.attention(*arguments, **named), want)
        for arguments, named in (((q, k, v), {"q": q}), ((q, k), {}), ((q, k, v, v), {}), ((), {"k": k, "v": v})):
            with self.assertRaises(TypeError):
                flashattn.attention(*arguments, **named)

    def test_packed_sequences_that_grow(self):
        for lengths in ((3, 4), (4, 3), (1, 6), (7, 0)):
            self.assert_same(packed(*lengths))

    def test_what_arrays_hold_is_checked_each_time(self):
        self.assert_same(pages([0, 1], [2, 3]))
        self.assert_same(pages([0, 1], [2, 6]))
        for values in ([3, 9], [3, 10], [-1, 3]):
            self.assert_same(dense(seqused_k=np.array(values, np.int32)))
        for cu in ([0, 2, 7], [0, 7, 5], [1, 2, 7]):
            self.assert_same({**packed(3, 4), "cu_seqlens_k": np.array(cu, np.int32), "max_seqlen_k": 5})

    def test_no_array_is_kept_and_none_is_given_twice(self):
        given = dense(mask=np.ones((3, 9), bool), seqused_k=np.array([3, 4]))
        given["k"] = given["k"][:, ::-1]  # copied
        out = [flashattn.attention(**given) for _ in range(3)]
        self.assertEqual(len({x.ctypes.data for x in out}), 3)
        alive = [weakref.ref(x) for x in (*given.values(), out[0])]
        del given, out
        gc.collect()
        self.assertEqual([x() for x in alive], [None] * len(alive))

    def test_only_so_many_are_kept(self):
        for n in range(1, _prepared._MOST + 20):
            flashattn.attention(floats(1, 1, 1, 4), floats(1, n, 1, 4), floats(1, n, 1, 4))
        self.assertEqual(len(_prepared.CACHE._made), _prepared._MOST)

    def test_threads(self):
        cases = [dense(causal="bottom-right", seqused_k=np.array([n, 9 - n])) for n in range(8)]
        wanted, failed = [plainly(**given) for given in cases], []

        def work(n):
            for _ in range(200):
                if not np.array_equal(flashattn.attention(**cases[n]), wanted[n]):
                    failed.append(n)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])

    def test_handles(self):
        given = dense()
        with flashattn.Handle("cpu", threads=1) as handle:
            np.testing.assert_array_equal(flashattn.attention(**given, backend=handle), plainly(**given))
        with self.assertRaisesRegex(ValueError, "the handle is closed"):
            flashattn.attention(**given, backend=handle)

    def test_an_address(self):
        for x in (floats(3, 4), floats(3, 4)[:, 1:], floats(4)[::-1], np.zeros((0, 3)), np.zeros(())):
            self.assertEqual(_prepared.address(x), x.ctypes.data)


def in_child(plan, given, queue):
    queue.put(plan(**given).tobytes())


class Plans(unittest.TestCase):
    def test_the_bits_of_attention(self):
        kinds = [given for given in calls() if not any(isinstance(x, np.ndarray) and x.dtype == np.float64 for x in given.values())]
        half = len(kinds) // 2
        for first, then in zip(kinds[:half], kinds[half:]):
            strides = [x.strides for x in first.values() if isinstance(x, np.ndarray)]
            with self.subTest(**{name: getattr(x, "shape", x) for name, x in first.items()}):
                if any(step < 0 for steps in strides for step in steps):
                    self.assertRaisesRegex(ValueError, "k would be copied in each call", Plan, **first)
                    continue
                if isinstance(then.get("causal_offset"), int):
                    then["causal_offset"] = first["causal_offset"]
                if "max_seqlen_k" not in first and "cu_seqlens_k" in first:
                    first |= {"max_seqlen_q": 7, "max_seqlen_k": 7}
                others = ("seqused_k", "dropout_seed", "dropout_offset")
                arrays = {name: x for name, x in then.items() if isinstance(x, np.ndarray) or name in others}
                self.assertEqual(results(Plan(**first), arrays), results(plainly, then))

    def test_arrays_in_another_order(self):
        given = dense(mask=np.ones((3, 9), bool), seqused_k=np.array([3, 4], np.int32))
        plan = Plan(**given)
        np.testing.assert_array_equal(plan(**dict(reversed(given.items()))), plainly(**given))

    def test_refusals(self):
        given = dense(seqused_k=np.array([3, 4], np.int32))
        plan = Plan(**given)
        q = given["q"]
        for change, error, sentence in (
            ({"q": q[:1]}, ValueError, r"q has shape \(1, 3, 4, 32\), .*: the plan's has shape \(2, 3, 4, 32\)"),
            ({"q": q.astype(np.float16)}, ValueError, "q has .* dtype float16: the plan's has"),
            ({"k": given["k"].swapaxes(0, 1).copy().swapaxes(0, 1)}, ValueError, "k has .* strides"),
            ({"q": q.tolist()}, ValueError, r"(?s)q is \[\[\[\[.*: the plan's has"),
            ({"seqused_k": np.array([3, 4, 5])}, ValueError, "seqused_k has shape"),
            ({"seqused_k": None}, ValueError, "seqused_k is None: the plan's has"),
            ({"seqused_k": np.array([3, 10])}, flashattn.InvalidArgumentError, "seqused_k"),
            ({"seqused_k": np.array([3, 1 << 40])}, ValueError, "beyond 32 bits"),
            ({"mask": np.ones((3, 9), bool)}, TypeError, "mask is given: the plan takes q, k, v, seqused_k"),
            ({"dropout_seed": -1}, ValueError, "dropout_seed is -1"),
        ):
            with self.subTest(change=change.keys()), self.assertRaisesRegex(error, sentence):
                plan(**{**given, **change})
        with self.assertRaisesRegex(TypeError, "seqused_k is missing: the plan takes"):
            plan(q, given["k"], given["v"])
        for made, error, sentence in (
            ({"q": q.tolist()}, TypeError, "q is of list: a Plan takes NumPy arrays"),
            ({"q": np.ma.array(q)}, TypeError, "q is of MaskedArray"),
            ({"device_status": np.zeros(1, np.uint32)}, TypeError, "device_status is of ndarray"),
            ({"q": q[..., ::-1]}, ValueError, "q would be copied in each call"),
            ({"bias": np.zeros((3, 9))}, ValueError, "bias would be copied in each call"),
            ({"q": q[..., :5]}, ValueError, "k has head dimension 32"),
            ({"causal": True}, TypeError, "causal is True"),
            ({"casual": "top-left"}, TypeError, "casual"),
        ):
            with self.subTest(made=made.keys()), self.assertRaisesRegex(error, sentence):
                Plan(**{**given, **made})

    def test_threads_and_forks_share_one(self):
        given = dense()
        plan, want = Plan(**given), plainly(**given).tobytes()
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=in_child, args=(plan, given, queue))
        child.start()
        self.assertEqual(queue.get(), want)
        child.join()
        found = []
        threads = [threading.Thread(target=lambda: found.extend(plan(**given).tobytes() for _ in range(50))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(set(found), {want})


if __name__ == "__main__":
    unittest.main()
