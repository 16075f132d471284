"""What sharing a long sequence over two processes costs: attention, forwards and backwards, and what it keeps.

    python benchmarks/context.py --rounds 9
    python benchmarks/context.py --documents 8        # and 8 packed documents a row, which need a mask

Two ranks of one thread each, by the gathered keys of megaxf.parallel.context and by DeepSpeed's Ulysses (which cuts the
heads, 2 ranks over 2 key/value heads at most), against one process of two threads, in turn on the same row. Prints the
ratio of the medians to the one process, and the bytes that each rank keeps between forward and backward pass.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.groups import Group, Step
from benchmarks.timing import alternate, median_ratio

CONTENDERS = {"one process, 2 threads": (1, 2), "megaxf, 2 ranks": (2, 1), "DeepSpeed Ulysses, 2 ranks": (2, 1)}
"""Name -> ranks, threads of each."""
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64


def make_step(name: str, sequence: int, documents: int) -> Step:
    """Attention of this rank's share of one row in fp32; the step gives the bytes kept for the backward pass."""
    import torch

    from megaxf.models.attention import attention, causal_mask
    from megaxf.parallel.context import attend_over, own_views
    from megaxf.parallel.mesh import build_mesh

    axis = build_mesh({"context": CONTENDERS[name][0]}).axis("context")
    own = sequence // axis.size
    document_ids = torch.arange(sequence)[None] * documents // sequence if documents else None
    generator = torch.Generator().manual_seed(axis.rank)
    sizes = (HEADS, KV_HEADS, KV_HEADS)
    q, k, v = (torch.randn(1, own, heads, HEAD_DIM, generator=generator).requires_grad_() for heads in sizes)
    if name.startswith("megaxf"):
        views = own_views(own, axis=axis, document_ids=document_ids)

        def attend() -> torch.Tensor:
            return attend_over(q, k, v, mask=views, axis=axis, attention=attention, keep=False)
    else:
        mask = causal_mask(sequence, document_ids=document_ids)
        local = partial(attention, mask=mask)
        if name.startswith("DeepSpeed"):
            from deepspeed import init_distributed
            from deepspeed.sequence.layer import DistributedAttention

            init_distributed(dist_init_required=False)
            local = partial(DistributedAttention(local, axis.group, scatter_idx=2, gather_idx=1), batch_dim_idx=0)

        def attend() -> torch.Tensor:
            return local(q, k, v)

    def step() -> int:
        kept = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = attend()
        out.backward(torch.ones_like(out))
        return sum(kept.values())

    return step


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sequence", type=int, default=8192)
    parser.add_argument("--documents", type=int, default=0, help="packed in a row; 0 for no mask")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        steps = {}
        for name, (ranks, threads) in CONTENDERS.items():
            make = (make_step, name, arguments.sequence, arguments.documents)
            steps[name] = stack.enter_context(Group(ranks, threads, *make)).step
        kept = {name: step() for name, step in steps.items()}
        seconds = alternate(steps, arguments.rounds, warmup=1)
    print(f"fp32, {HEADS} heads of {HEAD_DIM}, {KV_HEADS} key/value heads, a row of {arguments.sequence:,} tokens")
    first = next(iter(CONTENDERS))
    for name, own in seconds.items():
        ratio, median = median_ratio(own, seconds[first]), statistics.median(own)
        print(f"{name:28} {median:7.3f} s   {ratio:5.2f} x one process   keeps {kept[name] / 2**20:7.1f} MiB a rank")


if __name__ == "__main__":
    main()
