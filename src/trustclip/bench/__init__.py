"""Benchmarks anyone can run: what a part costs next to its floor and to what others ship."""

#: Topic -> (module with a function ``run``, help, name of the class of its options).
TOPICS = {
    "head": (
        "heads",
        "the loss head against naive logits, TRL, Liger and bare matrix products",
        "HeadOptions",
    ),
    "intervals": (
        "intervals",
        "ratio bounds that depend on the token's old probability",
        "IntervalOptions",
    ),
    "step": ("steps", "a training step on a CPU, next to stock TRL's", "StepOptions"),
    "methods": ("methods", "gradient weights of every method", "MethodOptions"),
    "scale": (
        "scale",
        "a step on 1 to 512 H100, on paper: a cost model, not a run",
        "ScaleOptions",
    ),
}
