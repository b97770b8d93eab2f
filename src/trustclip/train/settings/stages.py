"""Settings of the recipes, checked before anything heavy is imported.

One frozen dataclass per stage; that of a command adds model, run directory and seed, which a recipe
states once for all its stages. The command line and files fill the same classes, so a value is
allowed in both or in neither. Options that TRL also has bear TRL's names. What else is true of a
setting is a mark beside its type (`trustclip.support.marks`).

In one file because it is the list of all settings, which is read as one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationInfo

from trustclip.constraints.schedule import Schedule
from trustclip.engines.settings import EngineSettings, Part
from trustclip.support.checked import (
    NUMBER,
    Count,
    Integer,
    NonNegative,
    Positive,
    Seed,
    UpToOne,
    Whole,
    checked,
)
from trustclip.support.marks import (
    Argument,
    Dotted,
    Extends,
    Metavar,
    Neutral,
    ToTrl,
    fields_of,
)
from trustclip.support.names import listed
from trustclip.support.yaml_files import yaml_list
from trustclip.train.problems.prompts import Prompt, PromptStyle, styled

Style = Literal["solution", "boxed", "answer", "plain"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Saved = Literal["merged", "adapter", "both"]
RateSchedule = Literal["linear", "cosine", "constant", "constant_with_warmup"]


def _at_most_one(value: float) -> float:
    if value > 1:
        raise ValueError("should be at most 1 for AdamW")
    return value


LearningRate = Annotated[Positive, AfterValidator(_at_most_one)]


def _twice_the_rank(value: int | None, info: ValidationInfo) -> int:
    # Without adapters it has no effect, and stays what earlier releases recorded.
    return 2 * (info.data.get("lora_r") or 32) if value is None else value


LoraAlpha = Annotated[Count | None, Field(validate_default=True), AfterValidator(_twice_the_rank)]

if TYPE_CHECKING:
    from trustclip.train.problems.verify.chosen import RewardSpec

    Rewards = str | Sequence[str | Mapping[str, Any]]
else:

    def _reward(value: Any) -> Any:
        from trustclip.train.problems.verify.chosen import canonical

        if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
            value = yaml_list(value)
        return canonical(value)

    #: What `trustclip.train.problems.verify.chosen` reads, in its plain form; to the command line,
    #: text.
    Rewards = Annotated[str, PlainValidator(_reward)]


#: Special values of `exclude` mean the test sets of the recipe, the training problems that are
#: near a test problem but no copy of it, and that nothing is left out.
OWN_TESTS, NEAR, NOTHING = "tests", "near", "none"


#: Names of columns, by the part of a problem that they hold.
Columns = Annotated[dict[str, str], Dotted(), Metavar("VALUE")]
#: Any other field of TRL's GRPOConfig, by its name.
Passthrough = Annotated[dict[str, Any], Dotted(), Metavar("VALUE")]
#: What fine-tuning and reinforcement learning write while they train.
_SaveSteps = Annotated[
    Whole, Neutral("a run continues exactly from any checkpoint, so how often it saves is free")
]
_SaveLimit = Annotated[Count | None, Neutral("how many checkpoints are kept")]
_LogSteps = Annotated[Count, Neutral("how often metrics are written; nothing is trained on them")]


@checked
class Place:
    """What a command or a recipe runs on, where it writes, and from which seed."""

    model: str
    """Folder or hub id of the model; "tiny" or "small" (made on the spot: 0.4 and 3 million
    parameters); "smollm2"; or the folder of a LoRA adapter (or ADAPTER+BASE)."""
    output_dir: Annotated[Path, Neutral("where the files of the run are written")]
    """Run directory; the trained model is saved in its folder "final"."""
    seed: Seed = 0
    """Random seed of the whole run."""
    dtype: Dtype = "auto"
    """Precision in which the model is loaded; "auto" is bfloat16 on a GPU and float32 on a CPU."""
    changed_inputs: Annotated[bool, Neutral("the run records what of its inputs has changed")] = (
        False
    )
    """Continue a stopped run even if one of its inputs has changed: rows of a data set, code of a
    reward or method, chat template, tokenizer, versions of packages."""


@checked
class Problems:
    """Problems, and how a model is asked to solve them."""

    columns: Columns = field(default_factory=dict)
    """Columns of your own files by role, where their names differ: {prompt: question}; further
    columns are passed to reward functions. On the command line --columns.prompt question."""
    prompt_style: Style = "solution"
    """Format of the prompt that presents a problem to the model."""
    prompt: Prompt = Prompt()
    """A system message and a template of your own, in place of the style's."""
    limit: Count | None = None
    """Number of problems to use (of each task), counted from the first; all when unset."""
    max_bad_rows: Whole = 100
    """Abort when more rows than this are unreadable; such rows are listed in quarantine.jsonl."""

    @property
    def style(self) -> PromptStyle:
        """The prompt style, with what is different."""
        return styled(self.prompt_style, self.prompt)


def _modules(value: Any) -> Any:
    return yaml_list(value) if isinstance(value, str) and ("," in value or "[" in value) else value


@checked
class Lora:
    """LoRA adapters beyond their rank and scale (`lora_r`, `lora_alpha`), by PEFT's names.

    Example:
      >>> Lora(target_modules="q_proj, v_proj").target_modules
      ('q_proj', 'v_proj')
    """

    dropout: Annotated[float, Field(ge=0, lt=1), NUMBER] = 0.0
    """Dropout of the adapters, in fine-tuning only: in RL it would change every ratio at random."""
    target_modules: Annotated[tuple[str, ...] | str, BeforeValidator(_modules)] = "all-linear"
    """Layers with adapters: "all-linear", names, or one name (a regular expression)."""
    modules_to_save: Annotated[tuple[str, ...], BeforeValidator(_modules)] = ()
    """Layers trained as a whole beside the adapters, such as lm_head."""
    use_rslora: bool = False
    """Scale by alpha / sqrt(r) (rsLoRA)."""
    use_dora: bool = False
    """Train the magnitude of each column as well (DoRA)."""
    bias: Literal["none", "all", "lora_only"] = "none"
    """Biases that are trained."""


@checked
class Training(Problems):
    """What fine-tuning and reinforcement learning have in common."""

    dataset: str
    """Problems with answers, or with solutions to tune on: a file (a part of it: FILE@[:1000]), a
    hub id (NAME:CONFIG@SPLIT), or generated ones ("arithmetic", "word-sums", ...)."""
    exclude: str = OWN_TESTS
    """Which test problems are left out of training, compared by text and answer: "tests" (those of
    the recipe's evaluation), names of further test sets (tests,aime24), or "none". With "near"
    (tests,near) reworded problems are left out too, and others of the same template."""
    lr_scheduler_type: ToTrl[RateSchedule] = "linear"
    """Learning-rate schedule."""
    weight_decay: ToTrl[NonNegative] = 1e-3
    """Weight decay of AdamW."""
    lora: Lora = Lora()
    """LoRA adapters beyond their rank: {target_modules: [q_proj, v_proj], use_rslora: true}."""
    lora_r: Whole = 0
    """Rank of LoRA adapters; 0 trains all weights."""
    lora_alpha: LoraAlpha = None
    """LoRA alpha: the adapters are scaled by alpha / r; 2 r when unset."""
    logging_steps: ToTrl[_LogSteps] = 1
    """Updates between lines of metrics.jsonl."""
    save: Annotated[
        Saved,
        Neutral("what is written at the end; nothing is trained on it"),
    ] = "merged"
    """With LoRA, what final/ holds: the merged model, the adapter alone, or the merged model with
    the adapter in final/adapter."""
    save_steps: _SaveSteps = 0
    """Updates between checkpoints; 0 saves one only when the run is interrupted."""
    save_total_limit: ToTrl[_SaveLimit] = 2
    """Number of most recent checkpoints to keep."""


class Rewarded:
    """A stage with a `reward`."""

    reward: Any

    @property
    def rewards(self) -> tuple["RewardSpec", ...]:
        """The rewards that `reward` names, in its order."""
        from trustclip.train.problems.verify.chosen import read_rewards

        return read_rewards(self.reward)


@checked
class SFTStage(Training):
    """Supervised fine-tuning on worked solutions."""

    learning_rate: ToTrl[LearningRate] = 2e-4
    """Peak learning rate of AdamW."""
    num_train_epochs: ToTrl[Positive] = 2.0
    """Passes over the data; ignored when max-steps is positive."""
    max_steps: ToTrl[Annotated[Integer, Extends()]] = -1
    """Optimizer updates; -1 to train for num-train-epochs."""
    per_device_train_batch_size: ToTrl[Count] = 8
    """Sequences per micro-batch and device."""
    gradient_accumulation_steps: ToTrl[Count] = 1
    """Micro-batches per update."""
    max_length: ToTrl[Count] = 2048
    """Maximum length of prompt plus solution in tokens; longer sequences are truncated."""
    warmup_steps: ToTrl[NonNegative] = 5
    """Warm-up updates until the peak learning rate; a value below 1 is a share of all updates."""


@checked
class SFTSettings(SFTStage, Place):
    """Supervised fine-tuning on worked solutions: teaches the answer format before RL."""

    seed: Seed = 3407
    """Random seed of the whole run."""


@checked
class RLStage(Training, EngineSettings, Rewarded):
    """Reinforcement learning with verified rewards under a policy-divergence constraint.

    Defaults are those of the ATR-GRPO paper (its Table 4) where it states them.
    """

    reward: Rewards = "correct"
    """What a completion earns: "correct" (1 for a correct final answer, else 0); another built-in
    reward; a function of yours, "file.py:function" or "package.module:function"; or a list of
    these, each {name: ..., weight: ..., ARGUMENT: ...}. See docs/bring-your-own.md."""
    reward_noise: Annotated[float, Field(ge=0, le=0.5), NUMBER] = 0.0
    """Share of the answer rewards to invert; a repeated run inverts the same ones."""
    max_prompt_length: Count | None = None
    """Maximum prompt length in tokens; problems with a longer prompt are left out."""
    max_completion_length: ToTrl[Count] = 1846
    """Maximum completion length in tokens."""
    num_generations: ToTrl[Annotated[int, Field(ge=2, le=10**9), NUMBER]] = 8
    """Completions per problem: the group relative to which advantages are computed."""
    per_device_train_batch_size: ToTrl[Count] = 8
    """Completions per micro-batch and device."""
    gradient_accumulation_steps: ToTrl[Count] = 4
    """Micro-batches per update."""
    steps_per_generation: ToTrl[Count | None] = None
    """Micro-batches per generation of samples; gradient-accumulation-steps when unset."""
    num_iterations: ToTrl[Count] = 2
    """How often each generation is trained on. At 1, and with steps-per-generation unset, every
    ratio is 1 and no constraint can act."""
    max_steps: ToTrl[Annotated[Count, Extends()]] = 1000
    """Optimizer updates."""
    learning_rate: ToTrl[LearningRate] = 5e-6
    """Peak learning rate of AdamW."""
    warmup_steps: ToTrl[NonNegative] = 0.1
    """Warm-up updates until the peak learning rate; a value below 1 is a share of all updates."""
    loss_type: ToTrl[Literal["grpo", "bnpo", "dr_grpo", "dapo", "luspo"]] = "dr_grpo"
    """Aggregation of the loss, by TRL's name."""
    scale_rewards: ToTrl[Literal["none", "group", "batch"]] = "none"
    """Divide advantages by the standard deviation of the group or the batch, or not (Dr. GRPO)."""
    beta: ToTrl[NonNegative] = 0.0
    """Coefficient of the KL divergence to the initial policy."""
    temperature: ToTrl[Positive] = 1.0
    """Sampling temperature."""
    top_p: ToTrl[UpToOne] = 1.0
    """Nucleus-sampling mass (top-p). Below 1 set `replay` too, or the ratio uses other
    probabilities than those that were sampled from."""
    mask_truncated_completions: ToTrl[bool] = False
    """Exclude completions that reached the length limit from the loss."""
    lora_r: Whole = 32
    """Rank of LoRA adapters; 0 trains all weights."""
    use_vllm: ToTrl[bool] = False
    """Generate with vLLM."""
    gradient_checkpointing: ToTrl[bool] = False
    """Recompute activations in the backward pass to save memory."""
    save_async: ToTrl[Annotated[bool, Neutral("whether training waits for a checkpoint")]] = False
    """Write checkpoints while training goes on, from a copy of the state in CPU memory."""
    tokens_every: Annotated[
        Whole, Neutral("how often tokens are recorded; nothing is trained on them")
    ] = 10
    """Record the completions of one update in this many, token by token; 0 records none."""
    tokens_completions: Annotated[Count, Neutral("how many completions that records")] = 8
    """Maximum number of completions recorded per update, in the folder "tokens"."""
    tokens_megabytes: Annotated[Positive, Neutral("how much space that takes")] = 16.0
    """Maximum space of all tokens recorded in a run."""
    report_to: ToTrl[
        Annotated[
            Literal["none", "comet_ml", "mlflow", "swanlab", "tensorboard", "trackio", "wandb"],
            Neutral("where metrics are copied to"),
        ]
    ] = "none"
    """Experiment tracker that gets metrics, evaluations and notices, by Transformers' callback."""
    trl: Passthrough = field(default_factory=dict)
    """Any other field of TRL's GRPOConfig; on the command line as --trl.NAME VALUE."""

    @property
    def schedule(self) -> Schedule:
        """The updates on each generation."""
        return Schedule(
            self.steps_per_generation or self.gradient_accumulation_steps,
            self.num_iterations,
            self.gradient_accumulation_steps,
        )

    @property
    def samples(self) -> int:
        """Completions of each generation, on one device."""
        return self.per_device_train_batch_size * self.schedule.steps_per_generation

    @property
    def reward_weights(self) -> list[float]:
        """Weight of each reward function in the total."""
        return [one.weight for one in self.rewards]


@checked
class RLSettings(RLStage, Place):
    """Reinforcement learning with verified rewards under a policy-divergence constraint.

    Defaults are those of the ATR-GRPO paper (its Table 4) where it states them.
    """


@checked
class EvalStage(Problems, Rewarded):
    """Evaluation: Mean@K and Pass@K."""

    tasks: str
    """Comma-separated problem sets: names (amc23, aime24, gsm8k@test), files, or generated ones
    ("arithmetic", "word-sums", "letter-counts", "digit-sums")."""
    k: Count = 8
    """Samples per problem."""
    reward: Rewards = "correct"
    """What counts as right: the verifier's answer check ("correct"), or a reward of your own that
    returns 0 or 1 ("file.py:function"); of a list, the first decides, and the mean of each further
    one is reported. See docs/bring-your-own.md."""
    temperature: NonNegative = 0.3
    """Sampling temperature; 0 for greedy decoding."""
    top_p: UpToOne = 0.95
    """Nucleus-sampling mass."""
    max_tokens: Count = 32768
    """Maximum completion length in tokens; at most what the model's context leaves."""
    batch_size: Count = 64
    """Completions generated at once."""

    @property
    def names(self) -> list[str]:
        """Names of the problem sets."""
        return listed(self.tasks)


@checked
class EvalSettings(EvalStage, Place):
    """Evaluation: Mean@K and Pass@K with intervals clustered by problem."""

    model: str
    """Folder or hub id of the model, "tiny" or "small"; with backend openai, the served name."""
    output_dir: Annotated[Path, Neutral("where the files of the run are written")]
    """Run directory: samples.jsonl holds every completion, summary.json the scores."""
    seed: Seed = 0
    """Seed of the sampling; the same seed, problems and batch size give the same samples."""
    backend: Literal["transformers", "vllm", "openai"] = "transformers"
    """What runs the model: Transformers or vLLM in this process, or an OpenAI-compatible server."""
    base_url: str = "http://127.0.0.1:8000/v1"
    """Address of the server (openai); the API key is read from OPENAI_API_KEY."""
    concurrency: Count = 16
    """Maximum number of concurrent requests (openai)."""
    vllm: Passthrough = field(default_factory=dict)
    """Arguments of vLLM's engine by its own names: tensor-parallel-size, max-model-len, dtype."""


#: The prompt when neither it nor a style is set: work in steps, then the answer.
STEP_BY_STEP = Prompt(
    system="Solve the problem in short steps, one a line. End with the answer alone.", answer="any"
)


@checked
class FirstSettings(Problems):
    """Problems of the commands before a training, whose plain prompt asks for steps."""

    prompt_style: Style = "plain"
    """Format of the prompt that presents a problem to the model."""
    prompt: Prompt = STEP_BY_STEP
    """A system message and a template of your own, in place of the style's."""
    reward: Rewards = "correct"
    """Reward of a completion: the answer check ("correct"), or one of your own."""

    def _stage(self, *own: str, **more: Any) -> RLStage:
        """A stage with these problems, the settings named ``own``, and ``more`` beside them."""
        # Another style has a prompt of its own, which the default must not replace.
        styled = self.prompt_style != "plain" and self.prompt == STEP_BY_STEP
        own = ("dataset", "columns", "prompt_style", "reward", "max_bad_rows", *own)
        settings = {name: getattr(self, name) for name in own}
        return RLStage(prompt=Prompt() if styled else self.prompt, **settings, **more)


@checked
class TrySettings(FirstSettings):
    """A few completions of a model before anything is trained: prompt, answer, reward, speed."""

    model: Argument[Annotated[str, Metavar("MODEL|RECIPE")]]
    """Folder or hub id of the model, "tiny", "small" or "smollm2"; or a recipe (.yaml), to try its
    training."""
    dataset: str
    """Problems with answers: a file, a hub id, or generated ones ("word-sums")."""
    n: Count = 8
    """Number of completions."""
    each: Count = 2
    """Completions per problem; with 2 or more you see whether their rewards differ."""
    max_tokens: Count = 256
    """Maximum completion length in tokens."""
    temperature: Positive = 1.0
    """Sampling temperature; training samples at 1."""
    top_p: UpToOne = 1.0
    """Nucleus-sampling mass."""
    seed: Seed = 0
    """Random seed of problems and samples."""
    dtype: Dtype = "auto"
    """Precision in which the model is loaded; "auto" is bfloat16 on a GPU and float32 on a CPU."""

    @property
    def training(self) -> RLStage:
        """An RL stage on the same problems, with the same prompts and rewards."""
        return self._stage(
            "top_p",
            "temperature",
            limit=self.limit or -(-self.n // self.each),
            max_completion_length=self.max_tokens,
        )


@checked
class InitSettings(FirstSettings):
    """Write a first recipe, with comments, and print its dry run and the next commands."""

    file: Argument[Path] = Path("recipe.yaml")
    """The recipe to write; it must not exist."""
    model: str = "smollm2"
    """Folder or hub id of the model, a GGUF file, "tiny" or "smollm2"."""
    dataset: str = "word-sums"
    """Problems with answers: a file (.jsonl, .json, .csv, .parquet), a hub id, "gsm8k", or
    generated ones such as "word-sums"."""
    tests: str | None = None
    """Problems to evaluate on; when unset the last tenth of a file, the test split of a hub data
    set, or other generated ones."""
    method: Part = cast("Part", "atr")
    """The constraint; see trustclip methods."""
    sft: bool = True
    """Fine-tune on worked solutions first, if the data have them."""
    seed: Seed = 0
    """Random seed of the run."""

    @property
    def training(self) -> RLStage:
        """An RL stage on these problems, to load them and to make their prompts."""
        return self._stage("method", "limit")


@checked
class RecipeEval(EvalStage):
    """Evaluation of a recipe: before, during and after training."""

    every: Whole = 0
    """Updates between evaluations; 0 to evaluate only before and after training."""


@checked
class Recipe(Place):
    """A whole experiment in one file: SFT, then RL with evaluations, from one seed."""

    name: Annotated[str, Neutral("a title, for people")]
    """Name of the experiment."""
    sft: SFTStage | None = None
    """Fine-tuning before RL; none when omitted."""
    rl: RLStage
    """Reinforcement learning."""
    eval: RecipeEval | None = None
    """Evaluations; none when omitted."""

    @property
    def training(self) -> RLSettings:
        """The reinforcement learning as a run of its own, in the recipe's folder."""
        return RLSettings(**self._place, **vars(self.rl))

    @property
    def tuning(self) -> SFTSettings | None:
        """The fine-tuning as a run of its own, in the folder ``sft`` of the recipe's."""
        if self.sft is None:
            return None
        place = self._place | {"output_dir": self.output_dir / "sft"}
        return SFTSettings(**place, **vars(self.sft))

    @property
    def _place(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in fields_of(Place)}


@checked
class DemoSettings:
    """A small policy learns under a constraint, on a laptop CPU, in minutes.

    The policy is a tiny one, trained from scratch, or the pretrained SmolLM2.
    """

    model: Literal["tiny", "smollm2"] = "tiny"
    """Policy: "tiny", 0.4 million parameters, one minute; or "smollm2", the pretrained
    SmolLM2-135M-Instruct, about ten minutes."""

    method: Part = cast("Part", "atr")
    """The constraint: a name listed by `trustclip methods`, "package.module:Class", or a mapping of
    `name` and hyper-parameters; --method.NAME VALUE sets a hyper-parameter."""
    seed: Seed = 0
    """Random seed of the whole run."""
    output_dir: Path | None = None
    """Run directory; runs/demo-METHOD-seedSEED when unset, runs/demo-MODEL-... with "smollm2"."""
    generations: Count | None = None
    """Number of generations, each of 16 updates: 6 of 256 samples with "tiny" and 8 of 64 with
    "smollm2" when unset."""
    test_problems: Count | None = None
    """Number of held-out problems evaluated before and after training: 128 with "tiny" and 64 with
    "smollm2" when unset."""


#: Sections of a recipe and the classes that check them.
SECTIONS: dict[str, type] = {"sft": SFTStage, "rl": RLStage, "eval": RecipeEval}
#: Commands that write a run directory, and the class of what is in its config.yaml.
OF_COMMAND: dict[str, type] = {
    "sft": SFTSettings,
    "rl": RLSettings,
    "eval": EvalSettings,
    "run": Recipe,
}
