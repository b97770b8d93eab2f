"""Panels as Plotly charts: the only module that uses Plotly."""

import html
import math
from collections.abc import Sequence
from typing import Any

from trustclip.report.draw.marks import Mark, Panel

#: Lines with fewer points than this show them.
_FEW = 30


def script() -> str:
    """The JavaScript of Plotly, included once per page."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def spec(panel: Panel) -> dict[str, Any]:
    """``{"data": [...], "layout": {...}}`` of a panel, without its colours.

    Each trace says in ``meta`` the number of its colour, its part (line, fill or marker) and the
    group that it belongs to, so that the page can paint it light or dark and hide it.
    """
    return {
        "data": [_trace(mark, panel) for mark in panel.marks],
        "layout": _layout(panel),
    }


def _trace(mark: Mark, panel: Panel) -> dict[str, Any]:
    name = html.escape(mark.name, quote=False)
    group = mark.series if mark.group is None else mark.group
    meta = {"series": mark.series, "group": group, "style": mark.style}
    trace: dict[str, Any] = {
        "type": "scatter", "mode": "lines", "name": name, "meta": meta,
        "x": _numbers(mark.x), "y": _numbers(mark.y), "hovertemplate": "%{y:.4~g}",
    }  # fmt: skip
    if mark.style in ("points", "printed"):
        return trace | _points(mark, panel, name)
    if mark.style == "band":
        back = slice(None, None, -1)
        return trace | {
            "x": [*trace["x"], *trace["x"][back]],
            "y": [*_numbers(mark.high), *_numbers(mark.low)[back]],
            "fill": "toself", "line": {"width": 0}, "hoverinfo": "skip", "hovertemplate": None,
        }  # fmt: skip
    if mark.style == "area":
        return trace | {"stackgroup": "all", "line": {"width": 0.5}}
    if mark.style == "faint":
        return trace | {
            "line": {"width": 1}, "opacity": 0.4, "hoverinfo": "skip", "hovertemplate": None,
        }  # fmt: skip
    dash = "dash" if mark.style == "dashed" else mark.dash
    trace["line"] = {"width": 1.4 if mark.style == "dashed" else 2.2, "dash": dash}
    if mark.style == "line" and len(mark.x) < _FEW:
        trace |= {"mode": "lines+markers", "marker": {"size": 5}}
    return trace


def _points(mark: Mark, panel: Panel, name: str) -> dict[str, Any]:
    whiskers: dict[str, Any] = {}
    at = mark.x if panel.across else mark.y
    if mark.low and None not in mark.low:
        whiskers = {
            "type": "data", "symmetric": False, "thickness": 1.8, "width": 0,
            "array": _numbers([h - v for h, v in zip(mark.high, at, strict=True)]),  # type: ignore[operator]
            "arrayminus": _numbers([v - low for low, v in zip(mark.low, at, strict=True)]),  # type: ignore[operator]
        }  # fmt: skip
    if not panel.across:
        mode = "markers" if whiskers or not isinstance(mark.x[0], str) else "lines+markers"
        marker = {"size": 8} if mark.style == "points" else {"size": 9, "symbol": "diamond-open"}
        return {"mode": mode, "marker": marker, "error_y": whiskers, "line": {"width": 1.2}}
    low, high = (_bound_text(bounds) for bounds in (mark.low, mark.high))
    interval = f" [{low}, {high}]" if low and high else ""
    return {
        "mode": "markers", "marker": {"size": 10}, "error_x": whiskers, "y": [name],
        "hovertemplate": f"%{{x:.1f}}{interval}<extra></extra>",
    }  # fmt: skip


def _bound_text(bounds: Sequence[float | None]) -> str:
    return "" if not bounds or bounds[0] is None else f"{bounds[0]:.1f}"


def _layout(panel: Panel) -> dict[str, Any]:
    lines = sum(mark.style in ("line", "area") for mark in panel.marks)
    x: dict[str, Any] = {"title": {"text": panel.x_title}, "automargin": True}
    y: dict[str, Any] = {"title": {"text": panel.y_title}, "automargin": True}
    if panel.log_x:
        x |= {"type": "log", "dtick": 1}
    if panel.ticks:
        x |= {"tickvals": list(panel.ticks), "ticktext": [f"{tick:g}" for tick in panel.ticks]}
    if any(isinstance(place, str) for mark in panel.marks for place in mark.x[:1]):
        x |= {"type": "category"}
    if panel.x_range is not None:
        x |= {"range": list(panel.x_range)}
    if panel.y_range is not None:
        y |= {"range": list(panel.y_range)}
    elif not panel.across:
        y |= {"rangemode": "tozero"}
    if panel.across:
        y |= {"type": "category", "showgrid": False}
    rule = {
        "type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": panel.rule, "x1": panel.rule,
        "layer": "below", "line": {"width": 1},
    }  # fmt: skip
    return {
        "xaxis": x, "yaxis": y, "showlegend": False, "dragmode": "zoom",
        "hovermode": "closest" if panel.across or lines > 12 else "x unified",
        "margin": {"l": 8, "r": 14, "t": 8, "b": 8},
        "height": height(panel),
        "shapes": [rule] if panel.rule is not None else [],
    }  # fmt: skip


def height(panel: Panel) -> int:
    """Pixels: of points across a line each, of the panel of one group less than of others."""
    if panel.across:
        return 70 + 34 * len(panel.marks)
    return 270 if panel.group is None else 200


def _numbers(values: Sequence[Any]) -> list[Any]:
    """Six significant digits, more than a screen shows; null for a value that is not finite."""
    return [
        None if v is None or (isinstance(v, float) and not math.isfinite(v))
        else html.escape(v, quote=False) if isinstance(v, str)
        else float(f"{v:.6g}")
        for v in values
    ]  # fmt: skip
