"""Rates that the cost model uses, each with its source."""

from typing import Literal, NamedTuple

_SHEET = "NVIDIA H100 data sheet"
_FROZEN = "`python lab/benchmarks/head_cost.py --hidden 256 --tokens 1024 --rows ours`, CPU"
_TRAINED = "`python lab/benchmarks/head_cost.py --hidden 256 --tokens 1024 --rows ours`, CPU"
_WHOLE = "comparison with published steps"


class Rate(NamedTuple):
    """A value, its meaning, and its source."""

    value: float
    unit: str
    meaning: str
    mark: Literal["measured", "published", "derived", "assumed"]
    source: str


#: Of an H100 SXM in nodes of eight.
RATES = {
    "peak": Rate(989e12, "FLOP/s", "bfloat16, dense", "published", _SHEET),
    "bandwidth": Rate(3.35e12, "B/s", "memory", "published", _SHEET),
    "memory": Rate(80e9, "B", "memory", "published", _SHEET),
    "link": Rate(
        400e9, "B/s", "a node's 8 links of 400 Gb/s", "published", "NVIDIA DGX H100 data sheet"
    ),
    "dense": Rate(
        0.41, "of peak", "training, smallest of the GPTs (2 B)", "published", "Megatron-LM, README"
    ),
    "moe": Rate(
        0.28,
        "of peak",
        "training Qwen3-30B-A3B on 16 H100, high 200s of TFLOP/s",
        "published",
        "Megatron Bridge, MoE hardware configurations",
    ),
    "product": Rate(
        728e12,
        "FLOP/s",
        "bare products of a head, H = 4096, V = 151936: 42 ms for 8192 tokens",
        "published",
        "huggingface/trl#7244",
    ),
    "frozen": Rate(1.21, "× its 2 products", "loss head, frozen", "measured", _FROZEN),
    "trained": Rate(
        1.46,
        "× its 3 products",
        "loss head, trained: its tiles are made twice",
        "measured",
        _TRAINED,
    ),
    "exact_kl": Rate(
        5.35, "products", "exact KL from hidden states: 4.28 s at 0.8 s each", "measured", _FROZEN
    ),
    "bregman": Rate(
        1.0,
        "products",
        "exact KL, frozen head: when the old policy is scored, none in updates (0.98 ×)",
        "measured",
        _FROZEN,
    ),
    "gate": Rate(40.0, "B per token", "any other gate", "derived", "ten float32 read or written"),
    "state": Rate(16.0, "B per parameter", "weights, gradients, AdamW", "derived", "2 + 2 + 4 + 8"),
    "decode": Rate(0.6, "of bandwidth, of peak", "reached while sampling", "assumed", _WHOLE),
    "tick": Rate(8e-3, "s", "a decoding step's scheduling, launches, sampling", "assumed", _WHOLE),
    "room": Rate(20e9, "B", "reserved for activations", "assumed", "–"),
}


def rate(name: str) -> float:
    """A value of `RATES`."""
    return RATES[name].value
