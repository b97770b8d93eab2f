"""Figures of the three policies: what moved, what differs, and what it costs."""

from collections.abc import Sequence

from trustclip.findings.facts import ROUNDING
from trustclip.findings.groups import Group
from trustclip.findings.rows import values
from trustclip.report.draw.curves import (
    alike,
    lines_of,
    metric_panels,
    quantile_panels,
)
from trustclip.report.draw.marks import Figure, Panel, figure

#: Panels: metric, title, axis, factor.
_PANELS = (
    ("sampler/k3", "The sampler differs: proximal / sampler", "k3, nats per token", 1.0),
    ("k3", "The policy moved: current / proximal", "k3, nats per token", 1.0),
    ("sampler/current/k3", "Both: current / sampler", "k3, nats per token", 1.0),
    ("sampler/current/sequence_ess", "Effective sample size", "percent of completions", 100.0),
    ("sampler/gated_old", "Gated, against the proximal policy", "percent of tokens", 100.0),
    ("sampler/gated_rollout", "Gated, against the sampler", "percent of tokens", 100.0),
    ("sampler/identical_share", "Tokens identical to the bit", "percent of tokens", 100.0),
)
_DRIFT = (
    ("drift/share", "Drift's part of the squared update", "percent", 100.0),
    ("drift/pull", "Pull towards the sampler", "nats", 1.0),
    ("drift/pull_positive", "The same, per unit of positive advantage", "nats", 1.0),
    ("drift/pull_negative", "The same, per unit of negative advantage", "nats", 1.0),
)
_QUANTILES = (("999", "99.9 %"), ("99", "99 %"), ("50", "median"), ("01", "1 %"), ("001", "0.1 %"))


def distance_figure(groups: Sequence[Group]) -> Figure | None:
    """Distances of the three policies, sample size and gated shares over updates.

    Of runs whose sampler never differs by more than rounding there is none: each panel would say
    what the figures of the gate say.
    """
    rows = [row for group in groups for run in group.runs for row in run.training]
    if max(values(rows, "sampler/k3"), default=0.0) <= ROUNDING:
        return None
    caption = (
        "Three policies: the sampler drew the tokens, the proximal policy is where the update "
        "started, the current one is being trained. Each panel names the two it compares. The "
        "effective sample size is Kish's, of the ratios current / sampler of whole completions."
    )
    return figure("sampler", "Sampler and trainer over updates", caption, _panels(groups, _PANELS))


def _panels(groups: Sequence[Group], metrics: Sequence[tuple[str, str, str, float]]) -> list[Panel]:
    """Panels of the groups that have logged the first of these metrics."""
    specs = [(f"trustclip/{key}", title, axis, by) for key, title, axis, by in metrics]
    return metric_panels([group for group in groups if lines_of(group, specs[0][0])], specs)


def drift_figure(groups: Sequence[Group]) -> Figure | None:
    """What an update does whatever the reward, and where that pulls the policy, over updates."""
    caption = (
        "The drift of an update is what it does on average over the sampler's tokens, whatever the "
        "reward; the signal is the rest. Where the pull is above 0, the drift brings the policy "
        "back towards the sampler: a unit step of the natural gradient takes so much from "
        "KL(sampler‖policy). For a centred method the curves show the drift that was removed."
    )
    return figure("drift", "Drift and signal over updates", caption, _panels(groups, _DRIFT))


def quantile_figure(groups: Sequence[Group]) -> Figure | None:
    """Quantiles of the log-ratio proximal / sampler, both tails, one panel per group."""
    panels = quantile_panels(groups, "sampler/log_ratio", _QUANTILES, "log-ratio, nats")
    caption = (
        "The lines are quantiles of log(proximal / sampler). Narrow tails on both sides are noise "
        "of precision; wide tails mean other weights (stale samples). A tail on one side only "
        "means a truncated sampler or another vocabulary. See trustclip doctor --sampler."
    )
    return figure("sampler-tails", "Tails of the log-ratio", caption, alike(panels))
