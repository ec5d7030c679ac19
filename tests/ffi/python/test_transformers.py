"""flashattn.transformers beside transformers' eager attention, in small models of random weights: logits, gradients, tokens of generate, and
a count of the library's calls. Skipped where transformers is not installed."""

import inspect
import itertools
import os
import unittest
import warnings

import flashattn  # noqa: F401

try:
    import torch

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers
    from transformers import masking_utils as masking
except ImportError:
    transformers = None
else:
    from flashattn.torch import attention
    from flashattn import _described_mask as described
    from torch_reference import calls

    import flashattn.transformers as ours

LAYERS, ROWS, VOCABULARY = 2, 23, 97
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "initializer_range": 0.2,  # whose attention is far from uniform
}
LAYER_TYPES = ["sliding_attention", "full_attention"]
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
DECODERS = {
    "Llama": {},
    "Qwen3": {},
    "Mistral": {"sliding_window": 8},
    "Gemma2": {"sliding_window": 8, "layer_types": LAYER_TYPES, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16},
    "Gemma3": {"sliding_window": 8, "layer_types": LAYER_TYPES, "query_pre_attn_scalar": 16},
    "Llama4": {"attention_chunk_size": 8, "layer_types": ["chunked_attention", "full_attention"], "intermediate_size_mlp": 96, **EXPERTS},
    "GptOss": {"sliding_window": 8, "layer_types": LAYER_TYPES, **EXPERTS},
}
TEXT_CONFIGS = {name: f"{name}TextConfig" for name in ("Gemma3", "Llama4")}


def made(kind, config, implementation, weights=None):
    """The model with that attention; the weights of another, else random ones."""
    model = kind._from_config(type(config)(**config.to_dict()), attn_implementation=implementation).eval()
    if weights is None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("sinks", "bias")):  # zeros, or whatever was in memory
                    parameter.normal_()
    else:
        model.load_state_dict(weights.state_dict())
    return model


def pair(kind, config, judge="eager"):
    eager = made(kind, config, judge)
    return eager, made(kind, config, ours.NAME, eager)


def decoder(name, **options):
    config = getattr(transformers, TEXT_CONFIGS.get(name, f"{name}Config"))(**{**TEXT, **DECODERS[name], **options})
    # With eager attention, rows of padding are the mean of values, which Llama 4's experts hand on to other rows in some versions.
    return pair(getattr(transformers, f"{name}ForCausalLM"), config, "sdpa" if name == "Llama4" else "eager")


def tokens(batch=2, rows=ROWS):
    return torch.randint(2, VOCABULARY, (batch, rows))


def paddings():
    """A name, and which of the tokens are there: none on the left, on the right, in the middle."""
    seen = torch.ones(2, ROWS, dtype=torch.long)
    yield "none", None
    yield "whole", seen
    for name, hidden in (("left", slice(0, 5)), ("right", slice(-5, None)), ("middle", slice(9, 14))):
        some = seen.clone()
        some[0, hidden] = 0
        yield name, some


@unittest.skipIf(transformers is None, "transformers is not installed")
class Case(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(7)
        warnings.simplefilter("ignore")
        self.addCleanup(warnings.resetwarnings)
        transformers.logging.set_verbosity_error()

    def assert_close(self, got, want, limit=2e-5):
        self.assertLessEqual((got - want).abs().max().item(), limit * max(1, want.abs().max().item()))

    def assert_same(self, eager, model, given, layers, seen=None, output="logits"):
        """Of both models: outputs where there are tokens, and gradients of all parameters."""
        wants, gots = [], []
        for one, found in ((eager, wants), (model, gots)):
            one.zero_grad()
            with calls() as counted:
                result = getattr(one(**given), output)
                result = result if seen is None else result[seen.bool()]
                weights = torch.linspace(-1, 1, result.numel()).view(result.shape)
                (result * weights).sum().backward()
            expected = layers if one is model else 0
            self.assertEqual((counted["fa_forward_ex"], counted["fa_backward"]), (expected, expected))
            found.append(result.detach())
            found += [parameter.grad for parameter in one.parameters() if parameter.grad is not None]
        self.assertEqual(len(gots), len(wants))
        for got, want in zip(gots, wants):
            self.assert_close(got, want, 1e-4)


class Decoders(Case):
    def test_logits_and_gradients(self):
        for name in DECODERS:
            models = decoder(name)
            ids = tokens()
            for padding, seen in paddings():
                with self.subTest(model=name, padding=padding):
                    self.assert_same(*models, {"input_ids": ids, "attention_mask": seen}, LAYERS, seen)

    def test_packed_by_position_ids(self):
        places = torch.cat([torch.arange(n) for n in (9, 11, 3)])[None]
        for name in DECODERS:
            eager, model = decoder(name)
            ids = tokens(1)
            with self.subTest(model=name):
                given = {"input_ids": ids, "position_ids": places, "use_cache": False}
                self.assert_same(eager, model, given, LAYERS)
                if name in ("GptOss", "Llama4"):  # whose masks transformers makes, in some versions, without the positions
                    continue
                with torch.no_grad():
                    whole = model(**given).logits[:, 9:20]
                    alone = model(ids[:, 9:20]).logits
                self.assert_close(whole, alone)

    def test_generate(self):
        for name, cache in itertools.product(DECODERS, (None, "static")):
            models = decoder(name)
            ids = tokens()
            for padding, seen in list(paddings())[1:3]:
                with self.subTest(model=name, cache=cache, padding=padding):
                    found = []
                    for model in models:
                        with calls() as counted:
                            found.append(
                                model.generate(ids, attention_mask=seen, max_new_tokens=12, do_sample=False, cache_implementation=cache)
                            )
                    self.assertEqual(counted["fa_forward_ex"], 12 * LAYERS)
                    self.assertTrue(torch.equal(*found))

    def test_ways_of_generate(self):
        for name, way in itertools.product(("Llama", "Gemma2", "GptOss"), ("num_beams", "prompt_lookup_num_tokens", "prefill_chunk_size")):
            eager, model = decoder(name)
            ids = tokens(1)
            options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": 1, way: 3}
            with self.subTest(model=name, way=way):
                try:
                    want = eager.generate(ids, **options)
                except ValueError:  # which some versions do not take
                    continue
                with calls() as counted:
                    got = model.generate(ids, **options)
                self.assertGreater(counted["fa_forward_ex"], 0)
                self.assertTrue(torch.equal(got, want))

    def test_prompt_in_two_parts(self):
        for name in DECODERS:
            eager, model = decoder(name)
            ids = tokens()
            for padding, seen in list(paddings())[1:3]:
                with self.subTest(model=name, padding=padding), torch.no_grad():
                    found = []
                    for one in (eager, model):
                        first = one(ids[:, :13], attention_mask=seen[:, :13], use_cache=True)
                        with calls() as counted:
                            found.append(one(ids[:, 13:], attention_mask=seen, past_key_values=first.past_key_values).logits)
                    self.assertEqual(counted["fa_forward_ex"], LAYERS)
                    self.assert_close(found[1], found[0])

    def test_types(self):
        for name, dtype in itertools.product(("Llama", "Gemma2", "GptOss"), (torch.bfloat16, torch.float16)):
            eager, model = decoder(name, initializer_range=0.05)
            ids = tokens()
            with self.subTest(model=name, dtype=dtype), torch.no_grad():
                want = eager(ids).logits
                with calls() as counted:
                    got = model.to(dtype)(ids).logits
                self.assertEqual(counted["fa_forward_ex"], LAYERS)
                self.assert_close(got.float(), want, 0.05)

    def test_autocast(self):
        models = decoder("Gemma2", initializer_range=0.05)
        ids, (_, seen) = tokens(), list(paddings())[2]
        found = []
        for one in models:
            with torch.autocast("cpu", dtype=torch.bfloat16), calls() as counted:
                out = one(ids, attention_mask=seen).logits[seen.bool()].float()
                out.square().sum().backward()
            found.append([out.detach(), *(parameter.grad for parameter in one.parameters())])
        self.assertEqual((counted["fa_forward_ex"], counted["fa_backward"]), (LAYERS, LAYERS))
        for want, got in zip(*found):
            self.assertLessEqual((got - want).norm().item(), 0.05 * want.norm().item())

    def test_masks_of_four_axes(self):
        eager, model = decoder("Llama")
        ids = tokens()
        seen = (torch.rand(2, 1, ROWS, ROWS) < 0.5) | torch.eye(ROWS, dtype=torch.bool)
        added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        with torch.no_grad():
            want = eager(ids, attention_mask=added).logits
            for mask in (seen, added):
                with calls() as counted:
                    got = model(ids, attention_mask=mask).logits
                self.assertEqual(counted["fa_forward_ex"], LAYERS)
                self.assert_close(got, want)

    def test_dropout_is_the_librarys(self):
        _, model = decoder("Llama", attention_dropout=0.5)
        ids = tokens()
        with calls() as counted, torch.no_grad():
            found = [model.train()(ids).logits for _ in range(2)]
        self.assertEqual(counted["fa_forward_ex"], 2 * LAYERS)
        self.assertFalse(torch.equal(*found))

    def test_checkpointed(self):
        eager, model = decoder("Gemma2")
        ids, (_, seen) = tokens(), list(paddings())[2]
        for reentrant in (False, True):
            for one in (eager, model):
                one.train()
                one.gradient_checkpointing_enable({"use_reentrant": reentrant})
            with self.subTest(reentrant=reentrant):
                found = []
                for one in (eager, model):
                    one.zero_grad()
                    with calls() as counted:
                        one(inputs_embeds=one.get_input_embeddings()(ids), attention_mask=seen).logits[seen.bool()].square().sum().backward()
                    found.append([parameter.grad for parameter in one.parameters()])
                self.assertEqual((counted["fa_forward_ex"], counted["fa_backward"]), (2 * LAYERS, LAYERS))
                for want, got in zip(*found):
                    self.assert_close(got, want, 1e-4)


class Compiled(Case):
    def setUp(self):
        super().setUp()
        torch.compiler.reset()

    def test_whole_model(self):
        for name in ("Llama", "Gemma2", "GptOss"):
            eager, model = decoder(name)
            model.forward = torch.compile(model.forward, backend="aot_eager", fullgraph=name != "GptOss")  # its experts break graphs
            for padding, seen in list(paddings())[::2]:
                for rows in (ROWS, ROWS - 4):
                    ids = tokens(rows=rows)
                    given = {"attention_mask": None if seen is None else seen[:, :rows], "use_cache": False}
                    with self.subTest(model=name, padding=padding, rows=rows), torch.no_grad():
                        want = eager(ids, **given).logits
                        with calls() as counted:
                            got = model(ids, **given).logits
                        self.assertEqual(counted["fa_forward_ex"], LAYERS)
                        hidden = torch.ones(2, rows, dtype=torch.bool) if seen is None else seen[:, :rows].bool()
                        self.assert_close(got[hidden], want[hidden])

    def test_gradients(self):
        eager, model = decoder("Gemma2")
        model.forward = torch.compile(model.forward, backend="aot_eager")
        self.assert_same(eager, model, {"input_ids": tokens(), "use_cache": False}, LAYERS)

    def test_generate(self):
        for name in ("Llama", "Gemma2"):
            eager, model = decoder(name)
            model.forward = torch.compile(model.forward, backend="aot_eager")
            ids, (_, seen) = tokens(), list(paddings())[2]
            options = {"attention_mask": seen, "max_new_tokens": 6, "do_sample": False, "cache_implementation": "static"}
            with self.subTest(model=name):
                want = eager.generate(ids, **options)
                with calls() as counted:
                    got = model.generate(ids, **options)
                self.assertEqual(counted["fa_forward_ex"], 6 * LAYERS)
                self.assertTrue(torch.equal(got, want))

    def test_exported(self):
        eager, model = decoder("Gemma2")
        ids = tokens()
        with torch.no_grad():
            program = torch.export.export(model, (ids,), {"use_cache": False}, strict=False).module()
            with calls() as counted:
                got = program(ids, use_cache=False).logits
            self.assertEqual(counted["fa_forward_ex"], LAYERS)
            self.assert_close(got, eager(ids).logits)

    def test_layers_alone(self):
        eager, model = decoder("Gemma2")
        for layer in model.model.layers:
            layer.compile(backend="aot_eager")
        ids = tokens()
        for padding, seen in paddings():
            with self.subTest(padding=padding), torch.no_grad():
                want = eager(ids, attention_mask=seen).logits
                with calls() as counted:
                    got = model(ids, attention_mask=seen).logits
                self.assertEqual(counted["fa_forward_ex"], LAYERS)
                there = torch.ones(2, ROWS, dtype=torch.bool) if seen is None else seen.bool()
                self.assert_close(got[there], want[there])


class Others(Case):
    """Encoders, and decoders with an encoder."""

    def pair(self, kind, config):
        if not kind._can_set_attn_implementation():
            with self.assertRaisesRegex(ValueError, f"'libfa': {kind.__name__} of transformers .* does not compute by AttentionInterface"):
                made(kind, config, ours.NAME)
            self.skipTest(f"transformers {transformers.__version__} does not compute this model by its interface")
        return pair(kind, config)

    def test_bert(self):
        models = self.pair(transformers.BertModel, transformers.BertConfig(**TEXT))
        ids = tokens()
        for padding, seen in paddings():
            with self.subTest(padding=padding):
                self.assert_same(*models, {"input_ids": ids, "attention_mask": seen}, LAYERS, seen, "last_hidden_state")

    def test_models_without_the_interface(self):
        config = transformers.BloomConfig(**{name: TEXT[name] for name in ("vocab_size", "hidden_size")}, n_layer=2, n_head=4)
        with self.assertRaises(unittest.SkipTest):
            self.pair(transformers.BloomModel, config)

    def test_vit(self):
        sizes = {"image_size": 32, "patch_size": 8, **{name: TEXT[name] for name in list(TEXT)[1:5]}, "initializer_range": 0.2}
        models = self.pair(transformers.ViTModel, transformers.ViTConfig(**sizes))
        self.assert_same(*models, {"pixel_values": torch.randn(2, 3, 32, 32)}, LAYERS, output="last_hidden_state")

    def test_whisper(self):
        config = transformers.WhisperConfig(
            **{"vocab_size": VOCABULARY, "d_model": 64, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 64},
            **{f"{part}_{name}": n for part in ("encoder", "decoder") for name, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))},
            **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "init_std": 0.2, "use_cache": False},
        )
        eager, model = self.pair(transformers.WhisperForConditionalGeneration, config)
        sound, ids = torch.randn(2, 8, 40), tokens(rows=9)
        self.assert_same(eager, model, {"input_features": sound, "decoder_input_ids": ids}, 6)
        found = []
        for one in (eager, model):
            one.generation_config.update(suppress_tokens=None, begin_suppress_tokens=None, forced_decoder_ids=None)
            with calls() as counted, torch.no_grad():
                found.append(
                    transformers.GenerationMixin.generate(one, sound, decoder_input_ids=ids, max_new_tokens=8, do_sample=False, use_cache=True)
                )
        self.assertGreater(counted["fa_forward_ex"], 2 + 4 * 3)
        self.assertTrue(torch.equal(*found))

    def test_t5(self):
        config = transformers.T5Config(
            **{"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0},
            **{"pad_token_id": 0, "eos_token_id": None, "decoder_start_token_id": 0, "initializer_factor": 2.0},
        )
        eager, model = self.pair(transformers.T5ForConditionalGeneration, config)
        ids, answer = tokens(), tokens(rows=9)
        for padding, seen in paddings():
            with self.subTest(padding=padding):
                given = {"input_ids": ids, "attention_mask": seen, "decoder_input_ids": answer, "use_cache": False}
                self.assert_same(eager, model, given, 6)
                found = []
                for one in (eager, model):
                    with calls() as counted:
                        found.append(one.generate(ids, attention_mask=seen, max_new_tokens=8, do_sample=False))
                self.assertEqual(counted["fa_forward_ex"], 2 + 8 * 4)
                self.assertTrue(torch.equal(*found))


class Masks(Case):
    """What is described: each pattern by the library, beside the mask itself."""

    def given(self, rows, keys, first, offset, function, **more):
        older = "cache_position" in inspect.signature(masking.sdpa_mask).parameters
        position = {"cache_position": torch.arange(first, first + rows)} if older else {"q_length": rows, "q_offset": first}
        return {"batch_size": 2, "kv_length": keys, "kv_offset": offset, "mask_function": function, **position, **more}

    def assert_described(self, given, rows, keys, **counts):
        found = ours.mask(**given)
        want = masking.sdpa_mask(**{**given, "allow_is_causal_skip": False})
        if found is None:
            self.assertEqual(bool(want.all()), rows == 1)
            return found
        self.assertIsInstance(found, described.Described)
        self.assertEqual(found.shape, want.shape)
        q, k, v = torch.randn(2, rows, 4, 8), torch.randn(2, keys, 2, 8), torch.randn(2, keys, 2, 8)
        self.assert_close(attention(q, k, v, **found.options), attention(q, k, v, mask=want), 1e-6)
        self.assertTrue(torch.equal(found & True, want))
        return found

    def functions(self):
        yield "causal", masking.causal_mask_function
        for window in (1, 3, 6, 50):
            yield f"window of {window}", masking.sliding_window_causal_mask_function(window)
        for left in (0, 2):
            yield f"chunks after {left}", masking.chunked_causal_mask_function(4, torch.tensor([left, 0]))
        if hasattr(masking, "bidirectional_mask_function"):
            yield "all", masking.bidirectional_mask_function
        if hasattr(masking, "sliding_window_bidirectional_mask_function"):
            yield "window to both sides", masking.sliding_window_bidirectional_mask_function(2)

    def test_patterns(self):
        seen = torch.ones(2, 40, dtype=torch.bool)
        left, right = seen.clone(), seen.clone()
        left[0, :4], right[1, 9:] = False, False
        for (name, function), (rows, keys, first, offset), padding in itertools.product(
            self.functions(),
            ((12, 12, 0, 0), (5, 12, 7, 0), (5, 12, 0, 0), (5, 12, 3, 0), (1, 12, 11, 0), (1, 12, 5, 0), (4, 9, 12, 7), (1, 6, 12, 7)),
            (None, seen, left, right),
        ):
            with self.subTest(pattern=name, rows=rows, keys=keys, first=first, offset=offset, padding=padding):
                self.assert_described(self.given(rows, keys, first, offset, function, attention_mask=padding), rows, keys)

    def test_packed(self):
        ids = torch.tensor([[0] * 5 + [1] * 4 + [2] * 3, [0] * 12])
        places = torch.tensor([[*range(5), *range(4), *range(3)], list(range(12))])
        for name, function in self.functions():
            if hasattr(masking, "remap_positions_for_packed_sequence"):
                function = masking.remap_positions_for_packed_sequence(function, places)
            function = masking.and_masks(function, masking.packed_sequence_mask_function(ids))
            with self.subTest(pattern=name):
                found = self.assert_described(self.given(12, 12, 0, 0, function, allow_is_causal_skip=False), 12, 12)
                self.assertIsNone(found.options)  # as the comparison has looked at it

    def test_others_are_dense(self):
        odd = torch.tensor([[0] * 5 + [1] * 4 + [0] * 3] * 2)  # a sequence in two parts
        holes = torch.ones(2, 12, dtype=torch.bool)
        holes[0, 4:6] = False
        for name, function, padding in (
            ("two parts", masking.and_masks(masking.causal_mask_function, masking.packed_sequence_mask_function(odd)), None),
            ("holes", masking.causal_mask_function, holes),
            ("either", masking.or_masks(masking.causal_mask_function, lambda b, h, i, j: j < 3), None),
            ("one's own", lambda b, h, i, j: (i + j) % 2 == 0, None),
        ):
            with self.subTest(pattern=name):
                given = self.given(12, 12, 0, 0, function, attention_mask=padding, allow_is_causal_skip=False)
                found = ours.mask(**given)
                self.assertIs(type(found), torch.Tensor)
                self.assertTrue(torch.equal(found, masking.sdpa_mask(**given)))

    def test_is_left_out_where_that_means_the_same(self):
        for rows, keys, first, skip, left_out in ((5, 5, 0, True, True), (5, 5, 0, False, False), (5, 9, 0, True, True), (5, 9, 4, True, False)):
            with self.subTest(rows=rows, keys=keys, first=first, skip=skip):
                found = ours.mask(**self.given(rows, keys, first, 0, masking.causal_mask_function, allow_is_causal_skip=skip))
                self.assertEqual(found is None, left_out)

    def test_serves_keys_and_rows_of_its_own_alone(self):
        found = ours.mask(**self.given(5, 12, 7, 0, masking.causal_mask_function))
        q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 9, 8)
        want = attention(q, k, k, layout="bhsd", mask=found.dense()[..., :9]).transpose(1, 2)
        self.assert_close(ours.attention(None, q, k, k, found)[0], want, 1e-6)  # as in transformers, the last columns are cut off
        with self.assertRaisesRegex(NotImplementedError, "attn_mask has shape"):
            ours.attention(None, q[:, :, :3], k, k, found, fallback=False)

    def test_is_made_when_something_looks(self):
        given = self.given(5, 12, 7, 0, masking.sliding_window_causal_mask_function(3))
        want = masking.sdpa_mask(**given).clone()
        found = ours.mask(**given)
        self.assertIn("window", found.options)
        self.assertTrue(torch.equal(found.clone(), want))
        self.assertIsNone(found.options)
        found = ours.mask(**given)
        found[:, :, 2] = True  # a model that changes it
        want[:, :, 2] = True
        q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 12, 8)
        out, _ = ours.attention(None, q, k, k, found)
        self.assert_close(out, attention(q, k, k, layout="bhsd", mask=want).transpose(1, 2), 1e-6)


class Fallbacks(Case):
    def tensors(self, **options):
        return torch.randn(2, 4, 5, 8, **options), *(torch.randn(2, 2, 5, 8, **options) for _ in range(2))

    def test_leaves_to_sdpa(self):
        module = torch.nn.Module()
        module.num_key_value_groups, module.is_causal = 2, True
        function = masking.sliding_window_causal_mask_function(3)
        for name, tensors, more in (
            ("dtype", self.tensors(dtype=torch.float64), {}),
            ("output_attentions", self.tensors(), {"output_attentions": True}),
        ):
            given = Masks.given(self, 5, 5, 0, 0, function, local_size=3)
            theirs = masking.ALL_MASK_ATTENTION_FUNCTIONS["sdpa"](**given)
            for mask, their_mask in ((None, None), (ours.mask(**given), theirs)):
                with self.subTest(reason=name, mask=mask is not None), calls() as counted:
                    want, _ = ours._modeling.ALL_ATTENTION_FUNCTIONS["sdpa"](module, *tensors, their_mask)
                    got, weights = ours.attention(module, *tensors, mask, **more)
                    self.assertEqual(counted["fa_forward_ex"], 0)
                    self.assertIsNone(weights)
                    self.assert_close(got, want, 1e-6)
                    with self.assertRaisesRegex(NotImplementedError, f"attention is not flashattn's here: .*{name}"):
                        ours.attention(module, *tensors, mask, fallback=False, **more)

    def test_never_drops_what_sdpa_does_not_know(self):
        doubles = self.tensors(dtype=torch.float64)
        for name, tensors, more in (
            ("softcap", doubles, {"softcap": 3.0}),
            ("s_aux", doubles, {"s_aux": torch.zeros(4)}),
            ("sinks", self.tensors(), {"sinks": torch.zeros(2, 4, 5, 1)}),
            ("indices", self.tensors(), {"indices": torch.zeros(2, 5, 2)}),
        ):
            with self.subTest(keyword=name), self.assertRaisesRegex(NotImplementedError, f"sdpa would ignore {name}"):
                ours.attention(None, *tensors, None, **more)

    def test_register(self):
        for name in ("my_flash", "owner/kernel", "paged|libfa", "sdpa", "eager"):
            with self.subTest(name=name), self.assertRaisesRegex(ValueError, "name is "):
                ours.register(name)
        ours.register("libfa_alone", fallback=False)
        eager = made(transformers.LlamaForCausalLM, transformers.LlamaConfig(**TEXT), "eager")
        model = made(transformers.LlamaForCausalLM, eager.config, "libfa_alone", eager)
        ids = tokens()
        with torch.no_grad():
            self.assert_close(model(ids).logits, eager(ids).logits)
        with self.assertRaisesRegex(NotImplementedError, "dtype torch.float64"):
            model.double()(ids)


if __name__ == "__main__":
    unittest.main()
