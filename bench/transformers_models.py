#!/usr/bin/env python3
"""Small models of Hugging Face transformers on the CPU, with random weights: a prompt, and a step of generation after it, with the attention
of this library, of torch (sdpa) and of transformers' own Python (eager).

    transformers_models.py [--tokens 2048] [--rounds 7] [--dtype float32] [--threads 1] [MODEL …]

Four layers, 512 wide, eight query heads on two of keys, 64 dims. The ways take turns, so that other work on the machine moves the ratios
less than the times. The table has medians: milliseconds of the library's way, and what each other way takes as a multiple of it, by the
median of the rounds' ratios. sdpa has neither softcap nor sinks: "–". Needs torch, transformers and libflashattn (FLASHATTN_LIBRARY).
"""
import argparse
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bindings" / "python"))

import flashattn.transformers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from flashattn.handle import handle_of  # noqa: E402

SIZES = {"vocab_size": 1000, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
         "num_key_value_heads": 2, "head_dim": 64, "pad_token_id": 0}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 512}
MODELS = {
    "Llama": {},
    "Mistral": {"sliding_window": 512},
    "Gemma2": {**LAYERS, "query_pre_attn_scalar": 64},
    "GptOss": {**LAYERS, "sliding_window": 128, "num_local_experts": 4, "num_experts_per_tok": 2},
}
WITHOUT_SDPA = ("Gemma2", "GptOss")
OURS = flashattn.transformers.NAME


def models_of(name, tokens, dtype):
    """By the name of their attention; all have the same weights."""
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **MODELS[name]}, max_position_embeddings=tokens + 512)
    kind = getattr(transformers, f"{name}ForCausalLM")
    found = {}
    for way in (OURS, "eager", *(() if name in WITHOUT_SDPA else ("sdpa",))):
        found[way] = kind._from_config(type(config)(**config.to_dict()), attn_implementation=way).to(dtype).eval()
        if way == OURS:
            with torch.no_grad():
                for parameter in found[way].parameters():
                    parameter.normal_(0, 0.02)  # some models leave a few as they come
        else:
            found[way].load_state_dict(found[OURS].state_dict())
    return found


def seconds(call):
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def measure(name, options):
    dtype = getattr(torch, options.dtype)
    models = models_of(name, options.tokens, dtype)
    ids = torch.randint(1, SIZES["vocab_size"], (1, options.tokens))
    times = {"prompt": {way: [] for way in models}, "step": {way: [] for way in models}}
    last = {}
    for turn in range(options.rounds + 1):  # the first is not counted
        for way, model in models.items():
            took, out = seconds(lambda: model(ids, use_cache=True, logits_to_keep=1))
            steps = []
            for _ in range(8):
                token = out.logits[:, -1:].argmax(-1)
                step, out = seconds(lambda: model(token, past_key_values=out.past_key_values, use_cache=True))
                steps.append(step)
            last[way] = out.logits
            if turn:
                times["prompt"][way].append(took)
                times["step"][way].append(median(steps))
    error = max((last[way] - last["eager"]).abs().max().item() for way in models) / last["eager"].abs().max().item()
    if not error < (1e-3 if dtype == torch.float32 else 0.1):
        sys.exit(f"{name}: logits differ by {error:.1e} of the largest")
    for part, found in times.items():
        ours = found[OURS]
        ratios = {way: median(other / own for other, own in zip(found[way], ours)) for way in models if way != OURS}
        columns = "".join(f"{ratios[way]:10.2f}" if way in ratios else f"{'–':>10}" for way in ("eager", "sdpa"))
        print(f"{name:10} {part:8} {1e3 * median(ours):10.2f}{columns}", flush=True)


def begun(parser):
    """The options that every measurement of models has, in force; and what was measured, as the first line of its table."""
    parser.add_argument("--tokens", type=int, default=2048, help="of the prompt")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the model")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    handle_of("cpu").threads = options.threads
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {options.tokens} tokens, {options.dtype}, "
          f"{options.threads} thread(s)")
    return options


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; default all")
    options = begun(parser)
    print(f"{'model':10} {'part':8} {'ours, ms':>10}{'eager':>10}{'sdpa':>10}")
    with torch.inference_mode():
        for name in options.models or MODELS:
            measure(name, options)


if __name__ == "__main__":
    main()
