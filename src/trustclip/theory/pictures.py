"""Numbers for the theory's three figures, and the files."""

from pathlib import Path

import torch

from trustclip import divergences, intervals
from trustclip.theory import estimators, updates
from trustclip.theory.cases import DOUBLE
from trustclip.theory.checks import DELTA


def draw_all(folder: Path) -> list[Path]:
    """Draw every figure into a folder (SVG), made if missing.

    Returns:
      Paths of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {"constraint": _constraint(), "entropy": _entropy(), "estimators": _estimators()}
    paths = []
    for name, svg in drawn.items():
        paths.append(folder / f"{name}.svg")
        paths[-1].write_text(svg, encoding="utf-8")
    return paths


def _constraint() -> str:
    from trustclip.report.theory_figures import constraint

    ratio = torch.linspace(0.4, 2.0, 321, dtype=DOUBLE)
    values = divergences.k3(ratio.log())
    return constraint(ratio.tolist(), values.tolist(), DELTA, intervals.k3(DELTA))


def _entropy() -> str:
    from trustclip.report.theory_figures import entropy_phases

    p = torch.linspace(0.002, 0.998, 499, dtype=DOUBLE)
    halves = 0.5 ** torch.arange(1, 10, dtype=DOUBLE)
    stated, corrected = updates.lone_action_slopes(p, halves / halves.sum())
    return entropy_phases(p.tolist(), stated.tolist(), corrected.tolist())


def _estimators() -> str:
    from trustclip.report.theory_figures import estimators as draw

    ranks = torch.arange(1, 33, dtype=DOUBLE)
    spread = torch.randn(32, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    rare = torch.tensor([0.01, 0.59, 0.3, 0.1], dtype=DOUBLE)
    moves = {
        "every token moves": (-ranks.log(), spread),
        "one token of p = 0.01 rises": (rare.log(), torch.eye(4, dtype=DOUBLE)[0]),
    }
    panels, exact = {}, {}
    for title, (logits, direction) in moves.items():
        distances = torch.logspace(-2, 0.6, 40, dtype=DOUBLE).tolist()
        cases = [estimators.moved(logits, direction, d) for d in distances]
        exact[title] = [estimators.exact_divergences(c)["kl_old_new"] for c in cases]
        panels[title] = {}
        for name in estimators.ESTIMATORS:
            moments = [estimators.moments(c, name) for c in cases]
            panels[title][name] = ([m.mean for m in moments], [m.std for m in moments])
    return draw(panels, exact)
