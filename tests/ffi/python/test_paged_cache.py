"""flashattn.transformers.PagedCache beside transformers' own caches, in small models of random weights: tokens, logits, memory, and a count
of the library's calls. Skipped where transformers is not installed."""

import copy
import itertools
import unittest
import warnings

import flashattn
import numpy as np
import test_transformers
from test_transformers import LAYERS, ROWS, decoder, paddings, tokens, transformers

if transformers is not None:
    import torch
    from flashattn import _paged_cache
    from flashattn.transformers import PagedCache
    from torch_reference import calls
    from transformers import DynamicCache

    class Rounded(DynamicCache):
        """A dense cache whose keys and values are rounded to q8_0 as they come: what a cache of its blocks means."""

        def update(self, key_states, value_states, *arguments, **options):
            rounded = (_rounded(x) for x in (key_states, value_states))
            return super().update(*rounded, *arguments, **options)


DIMS = {"hidden_size": 128, "head_dim": 64, "max_position_embeddings": 512}


def _rounded(x):
    """By the library's append, and by the meaning of its bytes."""
    rows = x.reshape(1, -1, 1, x.shape[-1]).numpy()
    blocks = np.zeros((1, rows.shape[1], 1, x.shape[-1] // 32), flashattn.block_dtype("q8_0"))
    flashattn.append_kv(rows, rows, blocks, blocks.copy(), backend="cpu")
    values = blocks["d"].astype(np.float32)[..., None] * blocks["qs"]
    return torch.from_numpy(values.reshape(x.shape).astype(np.float32))


def generated(model, cache, ids, seen=None, **options):
    return model.generate(ids, attention_mask=seen, past_key_values=cache, do_sample=False, **{"max_new_tokens": 30, **options})


class Case(test_transformers.Case):
    def assert_same_tokens(self, model, ids, seen=None, dtype="float32", dense=None, **options):
        """Of a dense cache and of pages, which only the library reads."""
        want = generated(model, (dense or DynamicCache)(config=model.config), ids, seen, **options)
        cache = PagedCache(model.config, dtype, page_size=8)
        with calls() as counted:
            got = generated(model, cache, ids, seen, **options)
        self.assertEqual(counted["fa_append_kv"], counted["fa_forward_ex"])
        self.assertGreater(counted["fa_append_kv"], 0)
        self.assertTrue(torch.equal(got, want))
        return cache


class Generation(Case):
    def test_tokens_of_every_model(self):
        for name in test_transformers.DECODERS:
            _, model = decoder(name, **DIMS)
            for padding, seen in list(paddings())[::2]:
                with self.subTest(model=name, padding=padding):
                    self.assert_same_tokens(model, tokens(), seen, max_new_tokens=15)
                    self.assert_same_tokens(model, tokens(), seen, "q8_0", Rounded, max_new_tokens=15)

    def test_logits_are_those_of_rounded_keys(self):
        for name in ("Llama", "Gemma2", "GptOss"):
            _, model = decoder(name, **DIMS)
            ids, found = tokens(rows=60), []
            for cache in (Rounded(config=model.config), PagedCache(model.config)):
                with self.subTest(model=name), torch.no_grad():
                    parts = [model(part, past_key_values=cache).logits for part in ids.split((33, 1, 1, 25), 1)]
                    found.append(torch.cat(parts, 1))
            self.assert_close(found[1], found[0])

    def test_a_hundred_tokens(self):
        """Of prompts to a model of transformers' own spread of weights, whose likeliest tokens are nearly as likely as the next: a sum in
        another order may change one."""
        _, model = decoder("Llama", **DIMS, initializer_range=0.02)
        ids = tokens(16)
        want = generated(model, Rounded(config=model.config), ids, max_new_tokens=100)
        got = generated(model, PagedCache(model.config), ids, max_new_tokens=100)
        self.assertGreaterEqual((got == want).all(1).sum().item(), 14)

    def test_every_type(self):
        """The finer the type, the nearer the logits; and its bytes are those of the table in docs/guides/transformers.md."""
        _, model = decoder("Llama", **DIMS, initializer_range=0.05)
        ids = tokens(rows=64)
        with torch.no_grad():
            want = model(ids).logits
        limits = {"float32": (4, 1e-5), "bfloat16": (2, 0.02), "float16": (2, 0.002), "q8_0": (34 / 32, 0.02), "int8": (66 / 64, 0.03)}
        limits |= {"float8_e4m3fn": (66 / 64, 0.1), "float8_e5m2": (66 / 64, 0.2), "q5_1": (24 / 32, 0.1), "q5_0": (22 / 32, 0.1)}
        limits |= {"q4_1": (20 / 32, 0.2), "q4_0": (18 / 32, 0.2), "u4": (36 / 64, 0.2), "i4": (34 / 64, 0.3), "e2m1": (17 / 32, 0.3)}
        self.assertEqual(set(limits), set(_paged_cache.TYPES))
        for dtype, (each, limit) in limits.items():
            cache = PagedCache(model.config, dtype, page_size=16)
            with self.subTest(dtype=dtype), torch.no_grad():
                parts = [model(part, past_key_values=cache).logits for part in ids.split(16, 1)]
                error = (torch.cat(parts, 1) - want).norm() / want.norm()
                self.assertLessEqual(error.item(), limit)
                self.assertEqual(cache.nbytes, 2 * LAYERS * ids.numel() * 2 * 64 * each)

    def test_keys_and_values_of_different_types(self):
        _, model = decoder("Gemma2", **DIMS)
        cache = PagedCache(model.config, ("float16", "q4_0"), page_size=8)
        with calls() as counted:
            generated(model, cache, tokens())
        self.assertEqual(counted["fa_append_kv"], 30 * LAYERS)
        self.assertEqual((cache.layers[0]._pools["k"].dtype, cache.layers[0]._pools["v"].dtype), (torch.float16, torch.uint8))

    def test_types_of_models(self):
        for dtype in (torch.bfloat16, torch.float16):
            _, model = decoder("Llama", **DIMS, initializer_range=0.05)
            ids = tokens(rows=40)
            with self.subTest(dtype=dtype), torch.no_grad():
                want = model(ids).logits
                cache = PagedCache(model.config)
                got = torch.cat([model.to(dtype)(part, past_key_values=cache).logits for part in ids.split((39, 1), 1)], 1)
                self.assert_close(got.float(), want, 0.05)

    def test_ways_of_generate(self):
        for name, way in itertools.product(("Llama", "Mistral", "GptOss"), ("num_beams", "prompt_lookup_num_tokens", "prefill_chunk_size")):
            _, model = decoder(name, **DIMS)
            ids, options = tokens(1), {way: 3, "eos_token_id": 1, "max_new_tokens": 20}
            with self.subTest(model=name, way=way):
                try:
                    generated(model, DynamicCache(config=model.config), ids, **options)
                except (ValueError, RuntimeError):  # which some versions do not take of some models
                    continue
                self.assert_same_tokens(model, ids, **options)
        _, model = decoder("Llama", **DIMS)
        cache = self.assert_same_tokens(model, tokens(2), num_beams=3, num_return_sequences=2, max_new_tokens=20)
        shared = cache.layers[0]._table[:, 0]
        self.assertEqual(len(set(shared[:3])), 1)  # of the prompt

    def test_a_second_turn(self):
        _, model = decoder("Gemma2", **DIMS)
        ids, more, found = tokens(), tokens(rows=9), []
        for cache in (DynamicCache(config=model.config), PagedCache(model.config, "float32", page_size=8)):
            first = generated(model, cache, ids)
            found.append(generated(model, cache, torch.cat([first, more], 1)))
        self.assertTrue(torch.equal(*found))

    def test_a_copied_prefix(self):
        _, model = decoder("Llama", **DIMS)
        ids, prefix = tokens(rows=20), PagedCache(model.config, "float32", page_size=8)
        with torch.no_grad():
            model(ids[:, :13], past_key_values=prefix)
        want = generated(model, DynamicCache(config=model.config), ids)
        for _ in range(2):
            self.assertTrue(torch.equal(generated(model, copy.deepcopy(prefix), ids), want))
        self.assertEqual(prefix.get_seq_length(), 13)

    def test_decoders_with_an_encoder(self):
        """Both caches in pages, or the decoder's own alone."""
        sizes = {f"{part}_{name}": n for part in ("encoder", "decoder") for name, n in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 64))}
        sizes |= {"vocab_size": test_transformers.VOCABULARY, "d_model": 128, "max_position_embeddings": 64, "init_std": 0.2}
        config = transformers.BartConfig(**sizes, pad_token_id=0, eos_token_id=None, forced_eos_token_id=None)
        model = test_transformers.made(transformers.BartForConditionalGeneration, config, test_transformers.ours.NAME)
        ids = tokens()
        want = model.generate(ids, max_new_tokens=12, do_sample=False)
        for cross in (DynamicCache(config=config), PagedCache(config, "float32")):
            cache = transformers.EncoderDecoderCache(PagedCache(config, "float32"), cross)
            with calls() as counted:
                self.assertTrue(torch.equal(model.generate(ids, max_new_tokens=12, do_sample=False, past_key_values=cache), want))
            self.assertEqual(counted["fa_append_kv"], 12 * 2 + (2 if isinstance(cross, PagedCache) else 0))

    def test_compiled(self):
        torch.compiler.reset()
        _, model = decoder("Llama", **DIMS)
        want = self.assert_same_tokens(model, tokens(), max_new_tokens=5)
        model.forward = torch.compile(model.forward, backend="aot_eager")
        again = self.assert_same_tokens(model, tokens(), max_new_tokens=5)
        self.assertEqual(want.nbytes, again.nbytes)


class Pages(Case):
    def layer(self, dtype="float32", window=None, max_length=None, page=4):
        kind = _paged_cache._Type(dtype)
        return _paged_cache.PagedLayer((kind, kind), page, window, max_length)

    def content(self, layer):
        """Keys of each sequence, as the table finds them."""
        pages = layer._pools["k"][torch.from_numpy(layer._table.astype(np.int64))]
        return pages.flatten(1, 2)[:, : layer.stored]

    def test_random_walks(self):
        """Appending, cropping, choosing, repeating and forgetting: what is stored is what a dense cache has, and no page is two tokens'."""
        for seed in range(20):
            torch.manual_seed(seed)
            layer, dense = self.layer(), torch.zeros(2, 0, 2, 32)
            for _ in range(30):
                step = torch.randint(0, 6, ()).item()
                count, batch = torch.randint(1, 9, ()).item(), len(dense)
                if step < 3 or dense.shape[1] == 0:
                    new = torch.randn(batch, 2, count, 32)
                    layer.update(new, new)
                    dense = torch.cat([dense, new.transpose(1, 2)], 1)
                elif step == 3:
                    layer.crop(-count)
                    dense = dense[:, : max(dense.shape[1] - count, 0)]
                elif step == 4:
                    indices = torch.randint(0, batch, (torch.randint(1, 5, ()),))
                    layer.reorder_cache(indices)
                    dense = dense[indices]
                elif batch < 8:
                    layer.batch_repeat_interleave(2)
                    dense = dense.repeat_interleave(2, 0)
                self.assertEqual((layer.get_seq_length(), layer.batch_size), (dense.shape[1], len(dense)))
                self.assertTrue(torch.equal(self.content(layer), dense))
            layer.reset()
            self.assertEqual(layer.get_seq_length(), 0)

    def test_pages_before_the_window_are_used_again(self):
        _, model = decoder("Mistral", **DIMS)  # whose window is 8
        cache = PagedCache(model.config, "float32", page_size=4)
        generated(model, cache, tokens(rows=6), max_new_tokens=200)
        self.assertEqual(cache.get_seq_length(), 205)
        for layer in cache.layers:
            self.assertLessEqual(layer.stored, 8 + 4)
            self.assertLessEqual(len(layer._pools["k"]), 2 * 5)
        cache.crop(-2)
        with self.assertRaisesRegex(ValueError, "crop to 3 tokens: the window's keys before"):
            cache.crop(-200)

    def test_memory(self):
        """Beside transformers' own cache in bfloat16, and in float32."""
        _, model = decoder("Llama", **DIMS)
        ids = tokens(2, 300)
        dense = DynamicCache(config=model.config)
        with torch.no_grad():
            model(ids, past_key_values=dense)
        whole = sum(x.nbytes for layer in dense.layers for x in (layer.keys, layer.values))
        for dtype, share in (("q8_0", 0.28), ("q4_0", 0.15), ("i4", 0.14), ("e2m1", 0.14)):
            for most in (None, 320):
                cache = PagedCache(model.config, dtype, max_length=most, page_size=20)
                with self.subTest(dtype=dtype, max_length=most), torch.no_grad():
                    for part in ids.split(50, 1):
                        model(part, past_key_values=cache)
                    self.assertLessEqual(cache.nbytes, (1 if most is None else 320 / 300) * share * whole)
        # The share of bfloat16 is twice that of float32.
        i4 = PagedCache(model.config, "i4", page_size=20)
        with torch.no_grad():
            model(ids, past_key_values=i4)
        self.assertLessEqual(i4.nbytes, 0.28 * whole / 2)

    def test_room_for_a_known_length(self):
        layer = self.layer(max_length=21)
        layer.update(*torch.randn(2, 2, 1, 3, 32))
        memory = layer._pools["k"].data_ptr()
        for _ in range(18):
            layer.update(*torch.randn(2, 2, 1, 1, 32))
        self.assertEqual((layer._pools["k"].data_ptr(), layer.get_max_length()), (memory, 21))
        with self.assertRaisesRegex(ValueError, "the cache has 21 tokens, and gets 1: expected max_length, 21, at most"):
            layer.update(*torch.randn(2, 2, 1, 1, 32))


class Refusals(Case):
    def test_arguments(self):
        config = decoder("Llama")[1].config
        for error, sentence, options in (
            (ValueError, "dtype is 'q3_0': expected q8_0, ", {"dtype": "q3_0"}),
            (ValueError, r"dtype is \('q8_0', 'q8_0', 'q8_0'\): expected a name, or those for keys and", {"dtype": ("q8_0",) * 3}),
            (ValueError, "page_size is 0: expected a number of tokens", {"page_size": 0}),
            (ValueError, "max_length is 1.5: expected a number of tokens", {"max_length": 1.5}),
        ):
            with self.subTest(sentence=sentence), self.assertRaisesRegex(error, sentence):
                PagedCache(config, **options)

    def test_heads_that_blocks_do_not_fill(self):
        _, model = decoder("Llama")  # 16 dims
        with self.assertRaisesRegex(ValueError, "k has 16 dims in a head: expected a multiple of 32, as the cache's dtype is 'q8_0'"):
            generated(model, PagedCache(model.config), tokens())

    def test_attention_that_is_not_the_librarys(self):
        eager, model = decoder("Llama", **DIMS)
        for implementation in ("eager", "sdpa"):
            eager.set_attn_implementation(implementation)
            sentence = 'keys in a PagedCache: expected attn_implementation="libfa"'
            with self.subTest(implementation=implementation), self.assertRaisesRegex(NotImplementedError, sentence):
                generated(eager, PagedCache(eager.config), tokens())
        with torch.no_grad(), self.assertRaisesRegex(NotImplementedError, "output_attentions is true"):
            model(tokens(), past_key_values=PagedCache(model.config), output_attentions=True)

    def test_gradients(self):
        _, model = decoder("Llama", **DIMS)
        with self.assertRaisesRegex(NotImplementedError, "k_new requires a gradient, and flashattn.append_kv has none: expected torch.no"):
            model(tokens(), past_key_values=PagedCache(model.config))

    def test_other_batches_and_old_keys(self):
        layer = Pages().layer()
        keys, values = layer.update(*torch.randn(2, 2, 1, 3, 32))
        layer.update(*torch.randn(2, 2, 1, 3, 32))
        with self.assertRaisesRegex(ValueError, "keys are of a PagedCache that had 3 tokens, and has 6"):
            keys.attention(torch.randn(2, 3, 1, 32), values)
        with self.assertRaisesRegex(ValueError, "the cache has 2 sequences: expected as many new ones, not 3"):
            layer.update(*torch.randn(2, 3, 1, 3, 32))

    def test_caches_of_more_than_keys_and_values(self):
        config = getattr(transformers, "Qwen3NextConfig", None)
        if config is None or not hasattr(transformers.cache_utils, "LinearAttentionLayer"):
            self.skipTest("this transformers has no such layers in its DynamicCache")
        with self.assertRaisesRegex(NotImplementedError, "layer 0 has a LinearAttentionLayer: expected one of keys and values alone"):
            PagedCache(config(num_hidden_layers=4))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    unittest.main()
