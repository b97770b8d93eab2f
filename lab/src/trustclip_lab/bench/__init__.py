"""Benchmarks anyone can run: the cost of a part, its lower bound, and other implementations."""

#: Topic -> (module with a function ``run``, help, name of the class of its options).
TOPICS = {
    "head": (
        "heads",
        "the loss head against naive logits, TRL, Liger and bare matrix products",
        "HeadOptions",
    ),
    "intervals": (
        "bounds",
        "ratio bounds that depend on the token's old probability",
        "IntervalOptions",
    ),
    "step": ("steps", "a training step on a CPU, next to stock TRL's", "StepOptions"),
    "methods": ("methods", "gradient weights of every method", "MethodOptions"),
    "gpu": (
        "gpu.session",
        "everything that a GPU settles, in stages that resume (make gpu)",
        "GpuOptions",
    ),
}
