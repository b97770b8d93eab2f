"""CPU time of the output head with the log-probabilities of further tokens at every position.

``python benchmarks/candidates.py [--tokens 512] [--vocabulary 49152] [--hidden 576]``: one forward
and backward pass on one thread, the best of three; see benchmarks/RESULTS.md.
"""

import argparse
import time

import torch

from trustclip.head import Head, score
from trustclip.head.topk import further_logps


def seconds(args: argparse.Namespace, trained: bool, k: int | None) -> float:
    """CPU seconds with ``k`` further tokens, 0 for none and None for the whole vocabulary."""
    generator = torch.Generator().manual_seed(0)
    shape = args.vocabulary, args.hidden
    weight = (0.04 * torch.randn(shape, generator=generator)).requires_grad_(trained)
    hidden = torch.randn(args.tokens, args.hidden, generator=generator, requires_grad=True)
    ids = torch.randint(args.vocabulary, (args.tokens,), generator=generator)
    further = None
    if k is not None:
        further = torch.randint(args.vocabulary, (args.tokens, k), generator=generator)
    start = time.process_time()
    head = Head.of(weight)
    logp = score(hidden, head, ids).logp
    total = logp.sum()
    if k != 0:
        total = total + further_logps(hidden, head, ids, logp, further).mean()
    total.backward()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("tokens", 512), ("vocabulary", 49152), ("hidden", 576)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| further tokens | frozen head, CPU s | trained head, CPU s |\n|---|---:|---:|")
    for k in (0, 64, 512, None):
        best = [min(seconds(args, trained, k) for _ in range(3)) for trained in (False, True)]
        label = "whole vocabulary" if k is None else k or "none"
        print(f"| {label} | {best[0]:.2f} | {best[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
