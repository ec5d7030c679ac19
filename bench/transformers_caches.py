#!/usr/bin/env python3
"""Caches of flashattn.transformers.PagedCache beside a DynamicCache, in a small model of Hugging Face transformers with random weights:
memory, logits, and a step of generation.

    transformers_caches.py [--tokens 2048] [--rounds 7] [--dtype float32] [--threads 1] [MODEL]

The model is that of transformers_models.py. The caches take turns with the DynamicCache, so that other work on the machine moves the
ratios less than the times. Columns: memory after the prompt as a part of a DynamicCache's in bfloat16 and in float32; the distance of
the next token's logits from those over a float32 cache, by their norms; of 16 prompts those with the same 100 likeliest tokens; and a
step's time, as a multiple of the DynamicCache's. Needs torch, transformers and libflashattn (FLASHATTN_LIBRARY).
"""
import argparse
from statistics import median

from transformers_models import MODELS, OURS, SIZES, begun, models_of, seconds

import torch
from flashattn.transformers import PagedCache
from transformers import DynamicCache

TYPES = ("float32", "bfloat16", "q8_0", "int8", "float8_e4m3fn", "q5_1", "q5_0", "q4_1", "q4_0", "u4", "i4", "e2m1")
STEPS = 8


def filled(model, ids, cache):
    """Logits of the last token, over a cache that has all but it."""
    for part in ids[:, :-1].split(256, 1):
        model(part, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return model(ids[:, -1:], past_key_values=cache, use_cache=True).logits


def step(model, token, cache):
    return median(seconds(lambda: model(token, past_key_values=cache, use_cache=True))[0] for _ in range(STEPS))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", nargs="?", choices=MODELS, default="Llama")
    options = begun(parser)
    model = models_of(options.model, options.tokens, getattr(torch, options.dtype))[OURS]
    ids = torch.randint(1, SIZES["vocab_size"], (1, options.tokens))
    prompts = torch.randint(1, SIZES["vocab_size"], (16, 32))
    print(f"{options.model}\n{'cache':14}{'÷ bf16':>8}{'÷ f32':>8}{'logits':>10}{'same':>6}{'step':>8}")

    def tokens(cache):
        return model.generate(prompts, max_new_tokens=100, do_sample=False, past_key_values=cache)

    with torch.inference_mode():
        dense = DynamicCache(config=model.config)
        filled(model, ids, dense)
        whole = sum(x.numel() for layer in dense.layers for x in (layer.keys, layer.values))
        want = likeliest = None
        for dtype in TYPES:
            cache = PagedCache(model.config, dtype)
            logits, size = filled(model, ids, cache).float(), cache.nbytes
            found = tokens(PagedCache(model.config, dtype))
            if want is None:
                want, likeliest = logits, found
            ratios = [step(model, ids[:, :1], cache) / step(model, ids[:, :1], dense) for _ in range(options.rounds)]
            same = (found == likeliest).all(1).sum().item()
            print(f"{dtype:14}{size / whole / 2:8.3f}{size / whole / 4:8.3f}{(logits - want).norm() / want.norm():10.4f}{same:6}"
                  f"{median(ratios):8.2f}", flush=True)


if __name__ == "__main__":
    main()
