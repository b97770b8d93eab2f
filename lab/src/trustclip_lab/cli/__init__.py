"""The laboratory's commands, which `trustclip` finds by the entry point ``trustclip.commands``."""

from trustclip.cli.registry import Command

_LABORATORY = "trustclip_lab.cli.laboratory"

COMMANDS = {
    "lab": Command(_LABORATORY, "methods on very small policies, many seeds at once"),
    "arena": Command(
        _LABORATORY,
        "constraints tuned alike and compared on fresh seeds of the lab",
        continues=True,
        records=True,
    ),
    "theory": Command(_LABORATORY, "the paper's theorems, computed on both sides"),
    "tabular": Command(_LABORATORY, "methods on a bandit and a tree, where everything is exact"),
    "control": Command(_LABORATORY, "methods in PPO on Gymnasium environments, over seeds"),
    "paper": Command(_LABORATORY, "the ATR-GRPO paper's tables, audited"),
    "bench": Command(
        _LABORATORY, "what trustclip costs on a GPU, next to others, in stages that resume"
    ),
}
