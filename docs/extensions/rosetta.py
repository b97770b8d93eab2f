"""The page ``docs/rosetta.md``: ``python docs/extensions/rosetta.py > docs/rosetta.md``."""

from trustclip.constraints.rosetta import ENGINES, HEADER, cells, title
from trustclip.support.text import markdown_table

_INTRODUCTION = """\
# What each engine computes, as a method

Each row is a loss of a training engine, with the engine's defaults, and the method that has the
same gradient in every token's log-probability. The first row of an engine is its default.

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

*Three policies.* The [anchor](glossary.md#anchor) is the policy from which an engine measures a
token's ratio. It is either the proximal policy, whose log-probabilities the engine recomputes
before the update, or the policy that sampled: `anchored(...)`, or `anchor=rollout`.

*Aggregation* is what an engine does with the tokens' losses by default; it is no part of the
method (`trustclip.policy_loss`).

*Penalties.* `+ penalty(k2, 0.002)` is added to the objective of every token (`trustclip bounds
penalty`). PPO's adaptive penalty is `ppo_penalty`, KL-Cov's is `kl_cov`, and Kimi k1.5's loss
is `reinforce + penalty(k2, tau, anchor=rollout, level=sequence)`. A KL penalty towards a frozen
reference model bounds no update, and trainers add their own; with `anchor=ref` it is part of the
method. `penalty(k1, ..., anchor=ref)` is charged to the advantages, not to the objective.

*Candidates* of verl's `clip_cov` are tokens that may be dropped. On all other pages
[the word](glossary.md#candidates) means further tokens of a position.
"""


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


if __name__ == "__main__":
    print(page(), end="")
