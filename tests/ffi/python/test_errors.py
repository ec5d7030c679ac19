"""What is refused, by the library or before it, and how it is said."""

import inspect
import pickle
import resource
import unittest
from decimal import Decimal

import flashattn
import numpy as np

Q = np.zeros((2, 3, 4, 8), np.float32)
K = np.zeros((2, 5, 2, 8), np.float32)
PACKED_Q, PACKED_K = Q.reshape(6, 4, 8), K.reshape(10, 2, 8)
TABLE = np.zeros((2, 3), np.int32)
CU_Q, CU_K = [0, 3, 6], [0, 5, 10]


class Library(unittest.TestCase):
    """Faults that the library finds: status, name and sentence come with the exception."""

    def refused(self, error, status, sentence, q=Q, k=K, v=K, **options):
        with self.assertRaisesRegex(error, sentence) as caught:
            flashattn.attention(q, k, v, **options)
        self.assertIsInstance(caught.exception, flashattn.FlashAttnError)
        self.assertIsInstance(caught.exception, RuntimeError)
        self.assertEqual((caught.exception.status, caught.exception.status_name), status)
        return caught.exception

    def test_invalid_argument_is_a_value_error(self):
        invalid = (10, "FA_INVALID_ARGUMENT")
        for sentence, options in (
            ("dropout_p", {"dropout_p": 1.0}),
            ("dropout_p is nan", {"dropout_p": float("nan")}),
            ("softcap is -1", {"softcap": -1}),
            ("scale is inf", {"scale": float("inf")}),
            ("num_splits is -1", {"num_splits": -1}),
            ("window_left", {"window": (-2, 0), "alignment": "top-left"}),
            ("chunk is -3", {"chunk": -3, "alignment": "top-left"}),
            ("alignment is not set", {"window": (1, 1)}),
            ("alignment is not set", {"alibi_slopes": np.ones(4)}),
            ("FA_OPERAND_CAUSAL_OFFSET", {"causal": "explicit"}),
            ("CAUSAL_OFFSET", {"causal": "top-left", "causal_offset": 3}),
            ("expected FA_OPERAND_BIAS with FA_OPERAND_BIAS_SCALE", {"bias_scale": np.ones(4)}),
            (r"bias_period\[1\] is -1", {"bias": np.zeros(5, np.float32), "bias_period": (0, -1)}),
            ("mask_keys is -1", {"mask": np.ones(5, bool), "mask_keys": -1}),
            ("seqused_k", {"seqused_k": [5, 6]}),
            ("leftpad_k", {"leftpad_k": [0, -1], "seqused_k": [5, 5]}),
            ("kv_batch_idx", {"kv_batch_idx": [0, 2]}),
            ("cu_seqlens_q", {"q": PACKED_Q, "cu_seqlens_q": [0, 4, 3]}),
            ("cu_seqlens_k", {"k": PACKED_K, "v": PACKED_K, "cu_seqlens_k": [0, 5, 11]}),
            ("page_table", {"page_table": TABLE + 2}),
            ("heads_k is 3", {"k": np.zeros((2, 5, 3, 8), np.float32), "v": np.zeros((2, 5, 3, 8), np.float32)}),
        ):
            with self.subTest(options=list(options)):
                error = self.refused(ValueError, invalid, sentence, **options)
                self.assertIsInstance(error, flashattn.InvalidArgumentError)

    def test_unsupported_is_a_not_implemented_error(self):
        half = {"q": Q.astype(np.float16), "k": K.astype(np.float16), "v": K.astype(np.float16)}
        error = self.refused(NotImplementedError, (20, "FA_UNSUPPORTED"), "study baseline", algorithm="standard", **half)
        self.assertIsInstance(error, flashattn.UnsupportedError)
        self.assertEqual(flashattn.explain(*half.values(), algorithm="standard"), str(error))

    def test_out_of_memory_is_a_memory_error(self):
        keys = np.broadcast_to(np.zeros((1, 1, 1, 1), np.float32), (1, (1 << 31) - 1, 1, 1))
        rows = np.zeros((1, 1 << 13, 1, 1), np.float32)  # 2^44 scores to store
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 40, hard))  # or a machine that overcommits would begin to compute
        self.addCleanup(resource.setrlimit, resource.RLIMIT_AS, (soft, hard))
        error = self.refused(MemoryError, (30, "FA_OUT_OF_MEMORY"), ".", rows, keys, keys, algorithm="standard")
        self.assertIsInstance(error, flashattn.OutOfMemoryError)

    def test_a_missing_backend_is_never_replaced(self):
        for name, backend in flashattn.backends().items():
            if not backend.usable:
                error = self.refused(flashattn.FlashAttnError, (backend.status, flashattn_name(backend.status)), name, backend=name)
                self.assertEqual(str(error), backend.reason)

    def test_survives_pickling(self):
        error = self.refused(ValueError, (10, "FA_INVALID_ARGUMENT"), "softcap", softcap=-1)
        copy = pickle.loads(pickle.dumps(error))
        self.assertEqual(
            (type(copy), str(copy), copy.status, copy.status_name), (type(error), str(error), error.status, error.status_name)
        )

    def test_the_handle_serves_on(self):
        with flashattn.Handle("cpu") as handle:
            for _ in range(2):
                with self.assertRaises(flashattn.InvalidArgumentError):
                    flashattn.attention(Q, K, K, softcap=-1, backend=handle)
                self.assertEqual(flashattn.attention(Q, K, K, backend=handle).shape, Q.shape)


def flashattn_name(status):
    return {40: "FA_NO_DEVICE", 41: "FA_BACKEND_MISSING", 42: "FA_BACKEND_INCOMPATIBLE"}[status]


class Python(unittest.TestCase):
    """Faults in the arrays themselves: plain ValueError or TypeError that names the argument, before the library is called."""

    def refused(self, error, sentence, q=Q, k=K, v=K, **options):
        with self.assertRaisesRegex(error, sentence) as caught:
            flashattn.attention(q, k, v, **options)
        self.assertNotIsInstance(caught.exception, flashattn.FlashAttnError)

    def test_causal_true_says_why(self):
        self.refused(TypeError, "libraries differ|Libraries differ", causal=True)
        self.refused(ValueError, "causal is 'bottom_right': expected 'top-left' or 'bottom-right'", causal="bottom_right")
        self.refused(TypeError, "causal is 1: expected", causal=1)
        self.refused(ValueError, "must agree", causal="top-left", alignment="bottom-right")

    def test_shapes(self):
        packed = {"q": PACKED_Q, "cu_seqlens_q": CU_Q}
        paged = {"page_table": TABLE}
        for sentence, case in (
            (r"q has shape \(6, 4, 8\): expected 4 axes", {"q": PACKED_Q}),
            (r"q has shape \(2, 3, 4, 8\): expected 3 axes", {"cu_seqlens_q": CU_Q}),
            (r"k has shape \(10, 2, 8\): expected 4 axes", {"k": PACKED_K}),
            ("k has 1 sequences, q 2", {"k": K[:1], "v": K[:1]}),
            (r"k has \(2, 5\) sequences and rows, v \(2, 4\)", {"v": K[:, :4]}),
            ("k has head dimension 7: expected q's, 8", {"k": K[..., :7]}),
            ("at least one of each", {"k": K[:, :, :0], "v": K[:, :, :0]}),
            ("at least one of each", {"v": K[..., :0]}),
            ("belongs with cu_seqlens", {"max_seqlen_q": 3}),
            ("max_seqlen_k is 5: it belongs with", {"max_seqlen_k": 5}),
            (r"cu_seqlens_q has shape \(1, 3\)", {**packed, "cu_seqlens_q": [CU_Q]}),
            (r"cu_seqlens_k has shape \(4,\)", {**packed, "k": PACKED_K, "v": PACKED_K, "cu_seqlens_k": [0, 1, 2, 3]}),
            ("both given", {**paged, "k": K, "cu_seqlens_k": CU_K}),
            ("page_table has 3 rows", {"page_table": np.zeros((3, 3), int)}),
            (r"page_table has shape \(3,\)", {"page_table": TABLE[0]}),
            ("max_seqlen_k is 16: a row of page_table has room for 15 keys", {**paged, "max_seqlen_k": 16}),
            (r"seqused_k has shape \(3,\): expected \(batch,\) = \(2,\)", {"seqused_k": [1, 1, 1]}),
            (r"bias has shape \(3, 4\): expected one that broadcasts", {"bias": np.zeros((3, 4), np.float32)}),
            (r"mask has shape \(3, 2, 3, 5\)", {"mask": np.zeros((3, 2, 3, 5), bool)}),
            (r"mask_period is \(2, 1\): expected the mask that repeats", {"mask_period": (2, 1)}),
            (r"key_ranges holds values beyond 32 bits", {"key_ranges": np.array([[0, 2**40]])}),
            ("mask_keys is 3: expected a mask", {"mask_keys": 3}),
            ("mask_bits is true: expected a mask", {"mask_bits": True}),
            (r"mask has shape \(1, 1, 3, 2\): expected 1 bytes", {"mask": np.zeros((1, 1, 3, 2), np.uint8), "mask_bits": True}),
            (r"bias has shape \(4, 3, 5\)", {"bias": np.zeros((4, 3, 5), np.float32), "bias_period": (0, 2)}),
            (r"bias_scale has shape \(3,\)", {"bias": np.zeros(5, np.float32), "bias_scale": np.ones(3)}),
            (r"alibi_slopes has shape \(3,\)", {"alibi_slopes": np.ones(3), "alignment": "top-left"}),
            (r"sinks has shape \(2, 4\)", {"sinks": np.ones((2, 4))}),
            (r"k_descale has shape \(4,\)", {"k_descale": np.ones(4)}),
            (r"q_descale has shape \(2,\)", {"q_descale": np.ones(2)}),
        ):
            with self.subTest(sentence=sentence):
                self.refused(ValueError, sentence, **case)

    def test_numbers(self):
        """ctypes cuts an integer that is too long; the package must not."""
        for sentence, options in (
            ("dropout_seed is -1: expected 0", {"dropout_seed": -1}),
            ("dropout_offset is 18446744073709551616", {"dropout_offset": 1 << 64}),
            ("num_splits is 4294967296", {"num_splits": 1 << 32}),
            ("split_size is 9223372036854775808", {"split_size": 1 << 63}),
            (r"window\[1\] is 9223372036854775808", {"window": (0, 1 << 63), "alignment": "top-left"}),
            ("seqused_k holds values beyond 32 bits", {"seqused_k": [1 << 32, 5]}),
            ("max_seqlen_q is -1", {"q": PACKED_Q, "cu_seqlens_q": CU_Q, "max_seqlen_q": -1}),
        ):
            with self.subTest(sentence=sentence):
                self.refused(ValueError, sentence, **options)
        for sentence, options in (
            ("chunk is 1.5", {"chunk": 1.5}),
            ("window is 3: expected", {"window": 3}),
            ("softcap is 'high': expected a number", {"softcap": "high"}),
            ("scale is 1j", {"scale": 1j}),
            ("dropout_p is None", {"dropout_p": None}),
        ):
            with self.subTest(sentence=sentence):
                self.refused(TypeError, sentence, **options)

    def test_numbers_that_float32_would_change(self):
        """Into 0, which is "off", into infinity or into a certainty to drop: refused, and the sentence has the caller's number."""
        factor, small, bias = np.ones(1, np.float32), np.array([1e-46]), np.zeros((3, 5))
        bias[1, 2] = -1e300
        for sentence, options in (
            ("softcap is 1e-46: expected a number that float32 does not make 0", {"softcap": 1e-46}),
            ("softcap is 1e\\+300: expected a number that float32 does not make inf", {"softcap": 1e300}),
            ("softcap is 0E-400|softcap is 1E-400", {"softcap": Decimal("1e-400")}),
            ("scale is -1e-46: .* not make 0", {"scale": -1e-46}),
            ("scale is -1e\\+300: .* not make -inf", {"scale": np.float64(-1e300)}),
            ("scale is 10{400}: .* not make inf", {"scale": 10**400}),
            ("dropout_p is 0.9999999999: .* not make 1", {"dropout_p": 0.9999999999}),
            ("dropout_p is 1.0000000001: .* not make 1", {"dropout_p": 1.0000000001}),
            ("dropout_p is 1e-46: .* not make 0", {"dropout_p": 1e-46}),
            ("bias holds -1e\\+300: .* not make -inf", {"bias": bias}),
            ("bias_scale holds 1e-46: .* not make 0", {"bias": bias[:1], "bias_scale": np.full(4, 1e-46)}),
            ("sinks holds 1e\\+300", {"sinks": np.array([0, 1e300, 0, 0])}),
            ("alibi_slopes holds 1e\\+300", {"alibi_slopes": np.full(4, 1e300), "alignment": "top-left"}),
            ("alibi_slopes holds 1e-46", {"alibi_slopes": np.full(4, 1e-46), "alignment": "top-left"}),
            ("q_descale holds 1e\\+300", {"q_descale": [1e300]}),
            ("k_descale holds 1e-46", {"k_descale": small}),
            ("v_descale holds 1e-46", {"v_descale": small}),
            ("k_shift holds -1e\\+300", {"k_descale": factor, "k_shift": [-1e300]}),
            ("v_shift holds 1e\\+300", {"v_descale": factor, "v_shift": [1e300]}),
            ("o_scale holds 1e\\+300", {"o_scale": 1e300}),
            ("o_scale holds 1e-46", {"o_scale": 1e-46}),
        ):
            with self.subTest(sentence=sentence):
                self.refused(ValueError, sentence, **options)
        parts = np.zeros((1, 2, 3, 4, 8), np.float32), np.zeros((1, 2, 4, 3), np.float32)
        for sentence, call in (
            ("p is 0.9999999999", lambda: flashattn.dropout_mask(0.9999999999, (1, 1, 1, 1))),
            ("max_bias is 1e-46", lambda: flashattn.alibi_slopes(4, 1e-46)),
            ("o_scale holds 1e-46", lambda: flashattn.merge(*parts, o_scale=1e-46)),
            ("sinks holds 1e\\+300", lambda: flashattn.merge(*parts, sinks=[1e300] * 4)),
            ("cos holds 1e\\+300", lambda: flashattn.rotary(Q, np.full((3, 4), 1e300), np.zeros((3, 4)))),
        ):
            with self.subTest(sentence=sentence), self.assertRaisesRegex(ValueError, sentence):
                call()

    def test_numbers_that_float32_holds(self):
        """The smallest softcap that there is still caps: scores of ±1e-45, so every key counts the same."""
        keys = np.array([0, 3], np.float32).reshape(1, 2, 1, 1)
        out = flashattn.attention(keys[:, :1] + 1, keys, keys / 3, softcap=1e-45)
        self.assertAlmostEqual(float(out.item()), 0.5, 6)
        bias = np.array([1e-60, -np.inf, 0, 0, 0])  # beside scores 1e-60 is 0, and infinite is what it was
        want = flashattn.attention(Q, K, K, bias=bias.astype(np.float32))
        np.testing.assert_array_equal(flashattn.attention(Q, K, K, bias=bias), want)

    def test_a_shift_of_another_type_is_no_rounded_one(self):
        rng = np.random.default_rng(8)
        q, k = rng.standard_normal(Q.shape, np.float32), rng.integers(-9, 9, K.shape).astype(np.int8)
        factor, shift = np.array([0.25], np.float16), np.array([0.1001], np.float32)
        want = flashattn.attention(q, k, k, k_descale=factor.astype(np.float32), k_shift=shift)
        np.testing.assert_array_equal(flashattn.attention(q, k, k, k_descale=factor, k_shift=shift), want)

    def test_words(self):
        self.refused(ValueError, "algorithm is 'fast': expected 'flash' or", algorithm="fast")
        self.refused(ValueError, "precision is 'low': expected 'default' or 'native'", precision="low")
        self.refused(ValueError, "return_scores is 'all': expected 'raw' or", return_scores="all")
        self.refused(ValueError, "backend is 'gpu': expected 'auto' or", backend="gpu")
        self.refused(TypeError, "backend is 3: expected", backend=3)

    def test_words_of_other_libraries(self):
        out, lse = flashattn.attention(Q, K, K, return_lse=True)
        calls = {
            "attention": lambda **o: flashattn.attention(Q, K, K, **o),
            "attention_backward": lambda **o: flashattn.attention_backward(out, Q, K, K, out, lse, **o),
            "explain": lambda **o: flashattn.explain(Q, K, K, **o),
            "Plan": lambda **o: flashattn.Plan(Q, K, K, **o),
        }
        for name, hint in (
            ("attn_mask", "expected mask, of bool, true where a key is attended; or bias"),
            ("is_causal", 'expected causal, "top-left" as scaled_dot_product_attention'),
            ("softmax_scale", "expected scale"),
            ("sm_scale", "expected scale"),
            ("block_table", "expected page_table"),
            ("cache_seqlens", "expected seqused_k"),
            ("causl", "did you mean causal"),
        ):
            for function, call in calls.items():
                with self.subTest(name=name, function=function):
                    with self.assertRaisesRegex(TypeError, rf"^{function}\(\) got an unexpected keyword argument '{name}': {hint}"):
                        call(**{name: None})
        for name in ("zzz", "unknown"):
            with self.assertRaisesRegex(TypeError, f"unexpected keyword argument '{name}'$"):
                flashattn.attention(Q, K, K, **{name: 1})

    def test_keywords_are_listed(self):
        """By help() and editors: each option with its type and default, in the place of **options."""
        functions = (flashattn.attention, flashattn.attention_backward, flashattn.explain, flashattn.Plan)
        parameters = {f: inspect.signature(f).parameters for f in functions}
        for f, listed in parameters.items():
            with self.subTest(function=f.__name__):
                self.assertNotIn("options", listed)
                for name, default, kind in (
                    ("causal", None, "Causal | None"),
                    ("bias", None, "ArrayLike | None"),
                    ("mask_bits", False, "bool"),
                    ("layout", "bshd", "Layout"),
                    ("backend", None, "BackendName | Handle | None"),
                ):
                    self.assertEqual((listed[name].default, listed[name].annotation), (default, kind))
        documented = flashattn.attention.__doc__
        for name in parameters[flashattn.attention]:
            self.assertRegex(documented, rf"\b{name}\b")
        with self.assertRaisesRegex(TypeError, "unexpected keyword argument 'return_lse'"):
            flashattn.attention_backward(Q, Q, K, K, Q, Q, return_lse=True)


if __name__ == "__main__":
    unittest.main()
