"""How many tokens a second does `megaxf generate` make, beside transformers.generate with a static cache?

    python -m benchmarks.generate --dtype float32 --batch-size 1
    python -m benchmarks.generate --dtype bfloat16 --batch-size 8 --hidden-size 1024 --layers 16

The same weights, prompts and greedy tokens, alternately in one process; the ratio of the medians is printed. Time is
that of the CPU (of all threads) with --cpu-time, which other work on the machine lengthens less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.timing import alternate, median_ratio
from megaxf.generate import Sampling, generate, loading
from megaxf.models.llama_config import Config
from megaxf.models.weights import Weights


class _Of(Weights):
    """The weights of a model of transformers."""

    def __init__(self, model: torch.nn.Module):
        self._state = model.state_dict()
        self.shapes = {name: weight.shape for name, weight in self._state.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._state[name]


def models(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Ours and theirs with the same weights."""
    hidden = arguments.hidden_size
    shape = {
        "vocab_size": arguments.vocabulary, "hidden_size": hidden, "intermediate_size": hidden * 8 // 3 // 64 * 64,
        "num_hidden_layers": arguments.layers, "num_attention_heads": hidden // 64,
        "num_key_value_heads": max(hidden // 256, 1), "head_dim": 64, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
    }  # fmt: skip
    torch.manual_seed(1)
    dtype = getattr(torch, arguments.dtype)
    theirs = LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=False)).to(dtype).eval()
    return loading.load(Config(**shape), _Of(theirs), dtype, "cpu", one_row=arguments.batch_size == 1), theirs


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true")
    arguments = parser.parse_args()
    ours, theirs = models(arguments)
    prompts = torch.randint(5, arguments.vocabulary, (arguments.batch_size, arguments.prompt_tokens))
    count, made = arguments.new_tokens, arguments.new_tokens * arguments.batch_size

    def run_ours() -> list[list[int]]:
        return [r.tokens for r in generate(ours, prompts.tolist(), max_new_tokens=count, sampling=Sampling())]

    def run_theirs() -> list[list[int]]:
        found = theirs.generate(
            prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=count, min_new_tokens=count,
            do_sample=False, cache_implementation="static", eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        return found[:, prompts.shape[1] :].tolist()

    if arguments.dtype == "float32" and run_ours() != run_theirs():
        raise SystemExit("the tokens differ: nothing to compare")
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    seconds = alternate({"megaxf": run_ours, "transformers": run_theirs}, arguments.rounds, warmup=1, clock=clock)
    for name, times in seconds.items():
        print(f"{name:>13}: {made / statistics.median(times):8.1f} tokens/s, median of {len(times)}")
    print(f"        ratio: {median_ratio(seconds['megaxf'], seconds['transformers']):8.2f}")


if __name__ == "__main__":
    main()
