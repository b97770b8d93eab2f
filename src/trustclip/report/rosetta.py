"""The Rosetta table as text: rows for a terminal, and the page ``docs/rosetta.md``."""

from collections.abc import Mapping
from typing import Any

from trustclip.constraints.rosetta import ENGINES, Engine, Row, Spec
from trustclip.support.text import markdown_table

HEADER = ("loss", "method", "aggregation", "set in the engine", "remark")

CHECKED = {"package": "compared with the installed package", "formula": "compared with its formula"}

_INTRODUCTION = """\
# What each engine computes, as a method

One row per loss of a training engine, with the engine's defaults: the method that has the same
gradient in every token's log-probability. The first row of an engine is its default.

```python
import trustclip as tc

tc.preset("prime-rl")         # the default of prime-rl
tc.preset("verl", "gspo")     # another loss by its name there
tc.presets()                  # all of them
```

`trustclip methods --engines` prints the tables in a terminal. Every row is tested on one fixed set
of tokens against the installed package, or against its published formula, written a second time in
`tests/support/engine_formulas.py`. The heading of each table says which, with the release or the
date of the source; engines change their defaults.

*Three policies.* An engine measures a token's ratio either from the proximal policy, whose
log-probabilities it recomputes before the update, or from the policy that sampled: `anchored(...)`,
or `anchor=rollout`.

*Aggregation* is what an engine does with the tokens' losses by default; it is no part of the
method (`trustclip.policy_loss`).

*Penalties.* `+ penalty(k2, 0.002)` is added to the objective of every token (`trustclip bounds
penalty`). PPO's adaptive penalty is `ppo_penalty`, KL-Cov's is `kl_cov`, and Kimi k1.5's loss
is `reinforce + penalty(k2, tau, anchor=rollout, level=sequence)`. A KL penalty towards a frozen
reference model bounds no update; every trainer adds its own.
"""


def cells(row: Row) -> tuple[str, str, str, str, str]:
    """A row's text, in the order of `HEADER`; the method of none is a dash."""
    method = "-" if row.method is None else spelled(row.method)
    return row.name, method, row.aggregation, row.setting, row.note


def title(engine: Engine) -> str:
    """Heading of an engine's table.

    Example:
      >>> title(ENGINES["trl"])
      'TRL, 1.16.0 (compared with the installed package)'
    """
    return f"{engine.title}, {engine.read} ({CHECKED[engine.checked]})"


def page() -> str:
    """The page in Markdown: an introduction, and a table for each engine."""
    parts = [_INTRODUCTION]
    for name, engine in ENGINES.items():
        parts += [f"## {title(engine)}\n", f'`tc.preset("{name}")`\n']
        rows = [cells(row) for row in engine.rows]
        parts += [markdown_table(HEADER, [(*map(_code, code), note) for *code, note in rows]), ""]
    return "\n".join(parts) + "\n"


def _code(text: str) -> str:
    return f"`{text}`" if text and text != "-" else text


def spelled(spec: Spec) -> str:
    """A method's specification as one would write it, for tables.

    Example:
      >>> spelled({"name": "tis", "inner": {"name": "clip", "epsilon": 0.1}, "ceiling": 2.0})
      'tis(clip(epsilon=0.1), ceiling=2)'
      >>> spelled({"name": "penalty", "inner": "ipo", "divergence": "k2", "beta": 0.002})
      'ipo + penalty(k2, 0.002)'
    """
    if isinstance(spec, str):
        return spec
    rest = {key: value for key, value in spec.items() if key not in ("name", "inner")}
    if spec["name"] == "penalty":
        first = [str(rest.pop("divergence")), f"{rest.pop('beta'):g}"]
        price = ", ".join(first + _keywords(rest))
        return f"{spelled(spec['inner'])} + penalty({price})"
    inner = [spelled(spec["inner"])] if "inner" in spec else []
    return f"{spec['name']}({', '.join(inner + _keywords(rest))})"


def _keywords(values: Mapping[str, Any]) -> list[str]:
    return [f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items()]
