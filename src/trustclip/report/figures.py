"""Figures, by matplotlib: the only module that draws."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

#: Curves of a training run: title, key of the metrics row, factor.
CURVES = (
    ("reward", "reward", 1.0),
    ("entropy (nats per token)", "entropy", 1.0),
    ("completion length (tokens)", "completions/mean_length", 1.0),
    ("gated tokens (%)", "trustclip/gated", 100.0),
)
_STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "svg.fonttype": "none",
    "svg.hashsalt": "trustclip",
}


def training_curves(rows: Sequence[Mapping[str, Any]]) -> str:
    """Reward, entropy, completion length and gated share over updates, as SVG text.

    Args:
      rows: of ``metrics.jsonl``; a row that lacks a value has no point on its curve.
    """
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(2, 2, figsize=(8.4, 4.8), sharex=True, layout="constrained")
        for axis, (title, key, factor) in zip(axes.flat, CURVES, strict=True):
            points = [(row["step"], factor * row[key]) for row in rows if row.get(key) is not None]
            if points:
                steps, values = zip(*points, strict=True)
                marker = "o" if len(points) < 30 else ""
                axis.plot(steps, values, color="#2563eb", marker=marker, markersize=3.5)
            axis.set_title(title)
            axis.set_ylim(bottom=0)
        for axis in axes[-1]:
            axis.set_xlabel("update")
        return _svg(figure)


def gates(curves: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]]) -> str:
    """Gradient weight of every method over the ratio, for both signs of the advantage, as SVG.

    Args:
      curves: method -> (ratio, weight where A > 0, weight where A < 0).
    """
    columns = 4
    lines = -(-len(curves) // columns)
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(
            lines, columns, figsize=(9.6, 1.75 * lines), sharex=True, sharey=True,
            layout="constrained", squeeze=False,
        )  # fmt: skip
        for axis, (name, (ratio, positive, negative)) in zip(
            axes.flat, curves.items(), strict=False
        ):
            axis.axvline(1, color="#94a3b8", linewidth=0.8)
            axis.axhline(0, color="#94a3b8", linewidth=0.8)
            axis.plot(ratio, positive, color="#2563eb", label="A > 0")
            axis.plot(ratio, negative, color="#dc2626", linestyle="--", label="A < 0")
            axis.set_title(name, family="monospace")
            axis.set_ylim(-0.3, 3.4)
        for axis in axes.flat[len(curves) :]:
            axis.set_axis_off()
        for index, axis in enumerate(axes.flat[: len(curves)]):
            if index + columns >= len(curves):
                axis.tick_params(labelbottom=True)
                axis.set_xlabel("ratio new / old")
        for axis in axes[:, 0]:
            axis.set_ylabel("weight c")
        handles, labels = axes.flat[0].get_legend_handles_labels()
        spare = axes.flat[-1] if len(curves) < axes.size else axes.flat[0]
        spare.legend(handles, labels, loc="center", frameon=False)
        return _svg(figure)


def _svg(figure: Any) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]
