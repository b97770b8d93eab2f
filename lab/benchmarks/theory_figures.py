"""The figures of docs/lab/theory.md, as SVG.

python lab/benchmarks/theory_figures.py docs/lab/theory
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trustclip.constraints import divergences, intervals
from trustclip.report.draw.figures import STYLE, as_svg, plt
from trustclip_lab.theory import estimators, updates
from trustclip_lab.theory.cases import DOUBLE
from trustclip_lab.theory.theorems import DELTA

_BLUE, _RED, _GREY = "#2563eb", "#dc2626", "#94a3b8"
_LINES = ("#2563eb", "#16a34a", "#dc2626", "#9333ea", "#d97706")

Numbers = Sequence[float]


def draw_all(folder: Path) -> list[Path]:
    """Draw every figure into a folder (SVG), made if missing.

    Returns:
      Paths of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures = {"constraint": _constraint(), "entropy": _entropy(), "estimators": _estimators()}
    paths = []
    for name, svg in figures.items():
        paths.append(folder / f"{name}.svg")
        paths[-1].write_text(svg, encoding="utf-8")
    return paths


def _constraint() -> str:
    ratio = torch.linspace(0.4, 2.0, 321, dtype=DOUBLE)
    values = divergences.k3(ratio.log())
    return constraint_figure(
        ratio.tolist(), values.tolist(), DELTA, intervals.ratios(intervals.log_k3(DELTA))
    )


def _entropy() -> str:
    p = torch.linspace(0.002, 0.998, 499, dtype=DOUBLE)
    halves = 0.5 ** torch.arange(1, 10, dtype=DOUBLE)
    stated, corrected = updates.lone_action_slopes(p, halves / halves.sum())
    return entropy_figure(p.tolist(), stated.tolist(), corrected.tolist())


def _estimators() -> str:
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
        cases = [estimators.move(logits, direction, d) for d in distances]
        exact[title] = [estimators.exact_divergences(c)["kl_old_new"] for c in cases]
        panels[title] = {}
        for name in estimators.ESTIMATORS:
            moments = [estimators.moments(c, name) for c in cases]
            panels[title][name] = ([m.mean for m in moments], [m.std for m in moments])
    return estimators_figure(panels, exact)


def constraint_figure(
    ratio: Numbers, divergence: Numbers, delta: float, interval: tuple[float, float]
) -> str:
    r"""k3 over the ratio, the threshold, the interval it implies and the symmetric clip in it.

    Args:
      ratio: $w$.
      divergence: k3 of each ratio, nats.
      delta: threshold, nats.
      interval: $(l_\delta, u_\delta)$.
    """
    low, high = interval
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
        axis.axvspan(low, high, color=_BLUE, alpha=0.12, label=f"[l, u] = [{low:.3f}, {high:.3f}]")
        axis.plot(ratio, divergence, color=_BLUE, label="k3 = w - 1 - log w")
        axis.axhline(delta, color=_GREY, linestyle="--", label=f"delta = {delta:g}")
        for end, label in ((low, None), (2 - low, f"1 + (1 - l) = {2 - low:.3f}")):
            axis.axvline(end, color=_RED, linewidth=1, linestyle=":", label=label)
        axis.set_title("k3 within a threshold is an asymmetric interval of the ratio")
        axis.set_xlabel("ratio w = new / old")
        axis.set_ylabel("k3 (nats)")
        axis.set_ylim(0, 4 * delta)
        axis.legend(loc="upper center", framealpha=0.9, edgecolor="none")
        return as_svg(figure)


def entropy_figure(
    probability: Numbers, stated: Numbers, corrected: Numbers, extent: float = 1.0
) -> str:
    r"""Sign and size of the entropy difference by probability and advantage of a lone action.

    Args:
      probability: $\pi(a)$ of the action in the event.
      stated: first-order difference of ``X+`` per $\eta d A$ as Theorem 5.2 states it, nats.
      corrected: the same with the factor $\pi(a)$.
      extent: advantages are drawn from -extent to extent.
    """
    with plt.rc_context({**STYLE, "axes.grid": False}):
        figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.6), sharey=True, layout="constrained")
        limit = max(abs(v) for v in corrected) * extent
        image: Any = None
        for axis, sign, never in ((axes[0], -1, extent / 2), (axes[1], 1, -extent / 2)):
            rows = [extent * i / 20 for i in range(-20, 21)]
            grid = [[sign * a * v for v in corrected] for a in rows]
            image = axis.imshow(
                grid, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto", origin="lower",
                extent=(probability[0], probability[-1], -extent, extent),
                interpolation="bilinear",
            )  # fmt: skip
            for values, style, label in (
                (corrected, "-", "sign changes"),
                (stated, ":", "as the theorem is stated"),
            ):
                for p in _sign_changes(probability, values):
                    axis.axvline(p, color="black", linestyle=style, linewidth=1.2, label=label)
            axis.axhline(0, color="black", linewidth=0.6)
            axis.text(
                0.5, never, "no such token under\nthe one-sided operator", ha="center",
                va="center", fontsize=8, bbox={"facecolor": "white", "alpha": 0.6, "lw": 0},
            )  # fmt: skip
            axis.set_title("X-: kept by the clip alone" if sign < 0 else "X+: kept by ATR alone")
            axis.set_xlabel("probability of the action")
        axes[0].set_ylabel("advantage")
        handles, labels = axes[1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        figure.colorbar(image, ax=axes, label="entropy, ATR less clip (nats / eta d)")
        return as_svg(figure)


def _sign_changes(at: Numbers, values: Numbers) -> list[float]:
    pairs = zip(at, values, at[1:], values[1:], strict=False)
    return [0.5 * (x + y) for x, a, y, b in pairs if a * b < 0]


def estimators_figure(
    panels: Mapping[str, Mapping[str, tuple[Numbers, Numbers]]], exact: Mapping[str, Numbers]
) -> str:
    """Mean and standard deviation of the estimators over the exact KL(old || new).

    Args:
      panels: title -> estimator -> (means, standard deviations), nats.
      exact: title -> exact KL(old || new) at the same points, nats.
    """
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(panels), 2, figsize=(8.4, 2.9 * len(panels)), layout="constrained", squeeze=False
        )
        for row, (title, curves) in zip(axes, panels.items(), strict=True):
            kl = exact[title]
            for (name, (mean, std)), colour in zip(curves.items(), _LINES, strict=True):
                for axis, values in ((row[0], mean), (row[1], std)):
                    shares = [v / k for v, k in zip(values, kl, strict=True)]
                    # k1 and k3 have one mean: the dashes show that both are there.
                    style = "--" if name == "k3" else "-"
                    axis.plot(kl, shares, color=colour, linestyle=style, label=name)
            row[0].set_title(f"{title}: mean / KL(old || new)")
            row[1].set_title("standard deviation / KL(old || new)")
            row[0].set_ylim(0, 4)
            row[1].set_yscale("log")
            for axis in row:
                axis.set_xscale("log")
                axis.set_xlabel("exact KL(old || new), nats")
        axes[0, 0].legend(frameon=False, ncols=2)
        return as_svg(figure)


if __name__ == "__main__":
    for path in draw_all(Path(sys.argv[1])):
        print(path)
