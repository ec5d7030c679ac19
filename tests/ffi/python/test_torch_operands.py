"""Operands of flashattn.torch beside q, k and v: what is refused of them, and what broadcasts. Skipped where torch is not installed;
on a GPU, too, where there is one."""

import unittest

import test_torch

try:
    import torch
except ImportError:
    torch = None
else:
    from flashattn.torch import MultiheadAttention, attention


@unittest.skipIf(torch is None, "torch is not installed")
class Operands(unittest.TestCase):
    device = "cpu"

    def setUp(self):
        torch.manual_seed(1)

    def randn(self, *shape, **options):
        return torch.randn(*shape, device=self.device, **options)

    def qkv(self):
        return {name: self.randn(shape) for name, shape in {"q": (2, 20, 4, 16), "k": (2, 30, 2, 16), "v": (2, 30, 2, 12)}.items()}

    def test_lists_for_all_sequences_or_heads(self):
        t = {name: x.requires_grad_() for name, x in self.qkv().items()}
        lead, ones = (2, 2), ((1, 1), (2, 1), (1, 2), (2, 2))
        for case in range(8):
            leads = [ones[case % 4], ones[case // 4], ones[case // 2], (1, 1)]
            names = ("key_list", "full_list", "key_list_count", "full_list_count")
            given = {}
            for name, own in zip(names, leads):
                last = () if name.endswith("count") else (2,)
                given[name] = torch.randint(0, 2, (*own, 2, *last), device=self.device)
            written_out = {name: x.expand(*lead, *x.shape[2:]).contiguous() for name, x in given.items()}
            out, want = (attention(**t, **lists, list_rows=16, list_keys=16) for lists in (given, written_out))
            with self.subTest(leads=leads):
                self.assertTrue(torch.equal(out, want))
                gradients = ([*torch.autograd.grad(x.square().sum(), list(t.values()))] for x in (out, want))
                for a, b in zip(*gradients):
                    torch.testing.assert_close(a, b)
        whole = torch.zeros(1, 4, 2, 2, dtype=torch.int32, device=self.device)
        with self.assertRaisesRegex(ValueError, r"full_list has shape \(1, 2, 2, 2\): expected .* = \(1, 4\)"):
            attention(**t, list_rows=16, list_keys=16, key_list=whole, full_list=whole[:, :2])

    def test_words_of_other_libraries(self):
        t = self.qkv()
        for name, hint in (
            ("attn_mask", "expected mask, of bool, true where a key is attended; or bias"),
            ("is_causal", 'expected causal, "top-left" as scaled_dot_product_attention'),
            ("softmax_scale", "expected scale"),
            ("window_size", "expected window"),
            ("enable_gqa", "expected nothing in its place"),
            ("num_splits", "num_splits is a keyword of flashattn.attention, which this function lacks"),
            ("causl", "did you mean causal"),
        ):
            for call in (lambda **o: attention(**t, **o), lambda **o: MultiheadAttention(8, 2)(torch.ones(1, 2, 8), **o)):
                with self.subTest(name=name), self.assertRaisesRegex(TypeError, f"unexpected keyword argument '{name}': {hint}"):
                    call(**{name: None})

    def test_numbers_that_float32_would_change(self):
        t = self.qkv()
        for sentence, options in (
            ("softcap is 1e-46: expected a number that float32 does not make 0", {"softcap": 1e-46}),
            (r"scale is 1e\+300: .* not make inf", {"scale": 1e300}),
            ("dropout_p is 0.9999999999: .* not make 1", {"dropout_p": 0.9999999999}),
            ("dropout_p is 1e-46: .* not make 0", {"dropout_p": 1e-46}),
        ):
            with self.subTest(sentence=sentence), self.assertRaisesRegex(ValueError, sentence):
                attention(**t, **options)
        if self.device != "cpu":  # which would have to be waited for
            return
        large, small = (torch.full((4,), x, dtype=torch.float64) for x in (1e300, 1e-46))
        for sentence, options in (
            (r"sinks holds 1e\+300", {"sinks": large}),
            ("alibi_slopes holds 1e-46", {"alibi_slopes": small, "alignment": "top-left"}),
            (r"bias_scale holds 1e\+300", {"bias": self.randn(30), "bias_scale": large}),
        ):
            with self.subTest(sentence=sentence), self.assertRaisesRegex(ValueError, sentence):
                attention(**t, **options)
        self.assertTrue(torch.equal(attention(**t, sinks=small), attention(**t, sinks=torch.zeros(4))))


@unittest.skipIf(test_torch.no_gpu() is not None, test_torch.no_gpu() or "")
class OperandsOnGpu(Operands):
    device = "cuda:0"


if __name__ == "__main__":
    unittest.main()
