"""Methods on enumerable problems, with exact returns, entropies, divergences and gates."""

from trustclip_lab.tabular.sweep import PRESETS, Row, TabularSettings, run_tabular
from trustclip_lab.tabular.training import Outcome, Schedule, train
from trustclip_lab.tabular.trees import Tree, bandit, tree

__all__ = [
    "PRESETS",
    "Outcome",
    "Row",
    "Schedule",
    "TabularSettings",
    "Tree",
    "bandit",
    "run_tabular",
    "train",
    "tree",
]
