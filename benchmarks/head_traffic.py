"""Bytes and products of the loss head on a GPU, and the time they would take: a table for the docs.

``python benchmarks/head_traffic.py`` prints it. Nothing in it is measured. A product counts
2 H operations a logit. Kernels run one after the other, so what a softmax kernel moves adds to the
time, and what a product moves does so only beyond its own operations.
"""

from dataclasses import dataclass

#: Assumed: operations a second in bfloat16; bytes a second of memory, and of the L2 cache, with the
#: bytes of it that a tile can count on; seconds between two kernels.
PEAK, MEMORY, CACHE, CACHED, GAP = 790e12, 4.3e12, 6e12, 30e6, 1.5e-6
#: Tokens and vocabulary.
N, V = 16_384, 151_936


@dataclass(frozen=True)
class Choice:
    """A way to make one tile after another.

    Args:
      label: in words.
      rows: of a tile.
      columns: of a tile.
      products: of 2 H operations a logit.
      passes: times that the softmax kernel reads a tile of float32 logits.
      rescales: whether every tile rewrites the sums of its rows, or only rows whose maximum moved.
      weight_bytes: of a softmax weight that is stored.
    """

    label: str
    rows: int
    columns: int
    products: int = 2
    passes: int = 1
    rescales: bool = False
    weight_bytes: int = 2


CHOICES = (
    Choice("frozen: logits read twice, sums rewritten", 2048, 8192, passes=2, rescales=True),
    Choice("frozen, float32 weights", 2048, 8192, weight_bytes=4),
    Choice("frozen, half the rows", 2048, 8192),
    Choice("frozen, tile in the L2 cache", 2048, 2048),
    Choice("**frozen, as it is**", 4096, 8192),
    Choice("**trained: tiles made again**", 4096, 8192, products=4),
)


def estimate(choice: Choice, hidden: int) -> tuple[float, float, float]:
    """Bytes a token in memory, seconds, and seconds over those of the products alone."""
    tiles = N / choice.rows * V / choice.columns
    logits, sums = choice.rows * choice.columns, choice.rows * hidden
    weight = choice.weight_bytes
    fits = logits * (4 + weight) <= CACHED
    # A softmax kernel: reads logits, writes weights; a second product over recomputed tiles, too.
    again = choice.products == 4
    softmax = logits * (4 * choice.passes + weight) + (logits * (8 + weight) if again else 0)
    softmax_seconds = softmax / (CACHE if fits else MEMORY)
    if choice.rescales:
        softmax_seconds += 8 * sums / MEMORY
    through = choice.columns * hidden * 2 + 8 * sums + (0 if fits else logits * (4 + weight))
    if choice.products > 2:
        through += 8 * choice.columns * hidden + logits * weight
    operations = choice.products * 2 * hidden * logits / PEAK
    seconds = tiles * (max(operations, through / MEMORY) + softmax_seconds + 4 * GAP)
    moved = through + (0 if fits else softmax) + (8 * sums if choice.rescales else 0)
    return tiles * moved / N, seconds, seconds / (tiles * operations)


def table() -> str:
    """The table in Markdown."""
    lines = [
        "| head | tile | products | MB a token, H = 2048 | ms | × products | ms, H = 4096 "
        "| × products |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for choice in CHOICES:
        cells = []
        for hidden in (2048, 4096):
            moved, seconds, ratio = estimate(choice, hidden)
            cells += [f"{moved / 1e6:.1f}"] if hidden == 2048 else []
            cells += [f"{1e3 * seconds:.1f}", f"{ratio:.2f}"]
        tile = f"{choice.rows} × {choice.columns}"
        lines.append(f"| {choice.label} | {tile} | {choice.products} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
