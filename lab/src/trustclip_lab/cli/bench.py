"""``trustclip bench gpu``: everything that a GPU settles."""

from collections.abc import Sequence

from trustclip.cli.arguments import parse
from trustclip.support.names import unknown
from trustclip.support.terminal import Terminal, say

_USAGE = "usage: trustclip bench gpu [options]\n       trustclip bench gpu --help"


def bench(argv: Sequence[str]) -> int:
    """Run the stages, and print their tables."""
    if not argv or argv[0].startswith("-"):
        say(_USAGE)
        return 0 if argv and argv[0] in ("-h", "--help") else 2
    if argv[0] != "gpu":
        raise ValueError(unknown("topic of bench", argv[0], ("gpu",)))
    from trustclip_lab.bench.gpu.session import GpuOptions, run

    options = parse(GpuOptions, argv[1:], "bench gpu")
    import torch

    torch.set_num_threads(1)
    console = Terminal()
    for table in run(options):
        table.print(console)
    return 0
