"""Thresholds of what is said of a run, each once: pages, `explain` and the terminal read them.

Those of the guards, which watch a training while it goes on, are their own.
"""

#: Share of gated tokens: none at all is no constraint; below this one hardly acts; above the other
#: it slows training.
SELDOM, OFTEN = 1e-4, 0.2
#: Factors by which entropy counts as fallen or risen, length as grown, and reward as improved.
FALLEN, RISEN, GROWN, IMPROVED = 0.5, 1.5, 1.5, 2.0
#: Mean reward above which lower entropy and idle groups are expected.
SOLVED = 0.8
#: Share of groups, or of completions, without any advantage above which sampling is wasted.
IDLE = 0.3
#: Share of truncated completions above which rewards are partly about length; and share of
#: truncated, unreadable or idle ones at the start of a run above which it cannot learn.
TRUNCATED, HOPELESS = 0.1, 0.8
#: Distance of the sampler, nats per token: up to which it is rounding, and from which on it is more
#: than half precision makes (k3, and the mean absolute log-ratio).
ROUNDING, LARGE, ABSOLUTE = 1e-8, 5e-3, 0.1
#: Fewest tokens of a kind whose gated share is named.
TINY = 50
