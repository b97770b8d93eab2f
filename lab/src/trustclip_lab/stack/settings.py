"""Settings of the lab: one training of many seeds, and a table of them."""

from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from trustclip.constraints.aggregation import Aggregation
from trustclip.constraints.base import Positive
from trustclip.constraints.registry import Part, method
from trustclip.support.checked import Count, Share, Whole, checked
from trustclip.train.suite.settings import Sweep
from trustclip_lab.stack.policies import PolicyName
from trustclip_lab.stack.sampler import Sampler

TaskName = Literal["teacher", "chain", "needle", "many"]
AdvantageName = Literal["group_mean", "group_standardized", "leave_one_out"]


@checked
class LabSettings:
    """Methods on very small policies, each trained from many seeds at once."""

    output_dir: Path = Path("runs/lab")
    """Folder of the results."""
    name: Annotated[str, Field(min_length=1)] = "lab"
    """Title."""
    task: TaskName = "teacher"
    """Problems: teacher (4 tokens), chain (arithmetic), needle (16 tokens of which 2 decide) or
    many (right answers)."""
    policy: PolicyName = "window"
    """window: one hidden layer that sees the token before; transformer: it sees all."""
    width: Count = 48
    """Hidden units; of a transformer a multiple of 32."""
    layers: Count = 2
    """Blocks of a transformer."""
    method: Part = method("atr")
    """Method where `methods` has none."""
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Methods by label, with `sweep` for several thresholds, as in a suite."""
    sweep: Sweep = field(default_factory=dict)
    """Settings to sweep, by path: a list of values, or labels with a value each, as in a suite."""
    reference: str | None = None
    """Label that the others are compared with; the first one when unset."""
    seeds: Count = 16
    """Number of seeds, trained at once."""
    first_seed: Whole = 0
    """The first of them; the others follow."""
    sft_steps: Whole | None = None
    """Updates on worked answers that the start is made by; the task's own number when unset."""
    generations: Count = 20
    """Times that answers are sampled."""
    prompts: Count = 32
    """Prompts of a generation."""
    group: Annotated[int, Field(ge=2, le=10**4)] = 8
    """Answers to each prompt."""
    depth: Count = 16
    """Updates per generation."""
    passes: Count = 1
    """Times that each answer is used."""
    learning_rate: Positive = 3e-3
    """Of Adam, constant."""
    max_grad_norm: Positive = 1.0
    """Bound on the gradient of each seed."""
    advantage: AdvantageName = "group_mean"
    """How rewards become advantages."""
    aggregation: Aggregation = "token_mean"
    """How tokens become a loss."""
    noise: Share = 0.0
    """Share of training rewards that are inverted."""
    sampler: Sampler = Sampler()
    """In what the sampler differs from the policy in training."""
    eval_prompts: Count = 128
    """Held-out prompts of each seed."""
    eval_samples: Count = 2
    """Answers to each of them, after every generation."""
    pass_k: Whole = 0
    """Answers to each held-out prompt at the end, for Pass@K; 0 leaves it out."""
    distances: bool = True
    """Measure how far sampler, old and trained policy are from one another (`sampler/...`)."""
    drift: bool = False
    """Measure the drift of the method over the whole vocabulary (`drift/...`)."""
    collapse: Positive = 0.1
    """A run has collapsed if its score ends this far below its best (means of 3 evaluations)."""
    tail: Annotated[int, Field(ge=1)] = 3
    """Evaluations that the score at the end is the mean of."""
    device: str = "cpu"
    """Where to compute."""

    def __post_init__(self) -> None:
        answers, depth = self.prompts * self.group * self.passes, self.depth
        if answers % depth:
            raise ValueError(
                f"`depth` must divide the answers of a generation, prompts x group x passes = "
                f"{answers}, got {depth}."
            )
        if self.methods and self.method != method("atr"):
            raise ValueError("give either `method` or `methods`, not both.")
        if self.policy == "transformer" and self.width % 32:
            raise ValueError(
                f"`width` of a transformer must be a multiple of 32, got {self.width}."
            )
