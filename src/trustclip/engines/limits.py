"""What each engine supplies to a method, and so which methods it trains: one answer for all.

Engines, ``trustclip doctor``, ``--dry-run``, recipes, suites and the table of methods ask
`refusal`, before anything is loaded. What an engine gives may depend on its settings; TRL's and
verl's modules then narrow their entry of `ENGINES` (`Supply.without`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from trustclip.constraints.adaptive import adapts
from trustclip.constraints.base import Method, Trait
from trustclip.constraints.batch import SUPPLIERS

_TRL = "train it with trustclip.engines.trl"
_OWN = f"its reference model serves its own penalty alone; {_TRL}"
_LOOP = "call trustclip.policy_loss from your own training loop"


@dataclass(frozen=True)
class Remark:
    """One sentence about a configuration: an error if the run would fail or ignore a setting."""

    level: Literal["error", "note"]
    text: str


@dataclass(frozen=True)
class Supply:
    """What an engine passes to a method."""

    engine: str  # its name in sentences
    fields: frozenset[str] = frozenset()  # optional fields of `TokenBatch` that it has
    #: For each field that these settings do not supply: the reason, and the settings that would.
    missing: Mapping[str, str] = field(default_factory=dict)
    #: It is a trainer, with statistics over all ranks and an end of an update, and not only a
    #: caller of a loss.
    whole_loop: bool = False
    kl_gradient: bool = False  # exact KL divergences come with their gradient
    old_is_sampler: bool = False  # the old policy is the one that sampled: there is no other
    #: Some sequences come without candidates, and only ``centered`` leaves those as they are.
    candidates_of_some: bool = False
    no_turns: str = ""  # why gaps in the mask do not separate turns; empty where they do
    #: Why advantages are not divided by the standard deviation of their group; empty if they are.
    unscaled: str = ""

    def without(self, name: str, why: str) -> Self:
        """The same without a field; ``why`` ends the sentence *"it needs `name`, and ..."*."""
        return replace(self, fields=self.fields - {name}, missing={**self.missing, name: why})


#: Every engine, with the most that it supplies under any settings.
ENGINES: dict[str, Supply] = {
    one.engine: one
    for one in (
        Supply(
            "TRL",
            frozenset(
                {"entropy", "keys", "kl_old_new", "kl_new_old", "top_k_kl", "top_k_tv"}
                | {"logp_rollout", "logp_ref", "entropy_old", "lag", "candidates"}
            ),
            whole_loop=True,
        ),
        Supply(
            "TRL's AsyncGRPOTrainer",
            frozenset({"logp_rollout", "entropy", "lag"}),
            old_is_sampler=True,
            no_turns="it packs the tokens of all turns without the gaps between them",
        ),
        Supply("verl", frozenset({"logp_rollout"})),
        Supply("SkyRL", frozenset({"logp_rollout"})),
        Supply("NeMo-RL", frozenset({"logp_rollout"}), {"logp_ref": _OWN}),
        Supply("slime", frozenset({"logp_rollout"}), {"logp_ref": _OWN}),
        Supply(
            "prime-rl",
            frozenset({"logp_rollout", "candidates"}),
            old_is_sampler=True,
            candidates_of_some=True,
            unscaled="its orchestrator subtracts the mean alone",
        ),
        Supply(
            "Tinker",
            frozenset({"logp_rollout"}),
            old_is_sampler=True,
            unscaled="its cookbook subtracts the mean alone",
        ),
        Supply(
            "Stable-Baselines3",
            frozenset({"entropy", "keys", "kl_old_new", "kl_new_old", "logp_rollout"}),
            whole_loop=True,
            kl_gradient=True,
            no_turns="its tokens are steps of an environment",
        ),
        Supply("your loop", frozenset(SUPPLIERS), whole_loop=True, kl_gradient=True),
    )
}

#: TRL where nothing replies to the policy, as in every recipe.
ALONE = replace(
    ENGINES["TRL"],
    no_turns="a completion is one turn where no tools and no rollout_func reply to it",
)


def refusal(method: Method, supply: Supply) -> str | None:
    """The reason why an engine cannot train a method, and what to use instead; None if it can.

    Example:
      >>> import trustclip as tc
      >>> refusal(tc.method("atr"), ENGINES["verl"]) is None
      True
      >>> print(refusal(tc.method("full_kl"), ENGINES["verl"]))
      'full_kl' cannot be trained in verl: it needs `kl_old_new`, which comes from the loss head \
from the old policy's hidden states (exact KL(old || new)), and verl passes none to a policy \
loss; train it with trustclip.engines.trl.
    """
    engine = supply.engine
    start = f"{method.name!r} cannot be trained in {engine}: it"
    for name in method.requires:
        if name not in supply.fields:
            instead = _TRL if name in ENGINES["TRL"].fields else _LOOP
            why = supply.missing.get(name, f"{engine} passes none to a policy loss; {instead}")
            return f"{start} needs `{name}`, which comes from {SUPPLIERS[name]}, and {why}."
    single = [one for one in parts_of(method) if not hasattr(one, "parts")]
    needy = [one.name for one in single if "candidates" in one.requires]
    if supply.candidates_of_some and needy:
        return (
            f"{start} needs candidates at every token, and {engine} passes none for some "
            f"sequences, which {needy[0]!r} would leave without a limit; {_TRL}."
        )
    weigh = [one.name for one in parts_of(method) if Trait.WEIGHS_OLD_POLICY in one.traits]
    if supply.old_is_sampler and weigh:
        return (
            f"{start} compares the old policy with the one that sampled, and in {engine} they are "
            f"the same: {weigh[0]!r} would do nothing; name its inner method instead."
        )
    turns = any(getattr(one, "level", None) == "turn" for one in parts_of(method))
    if turns and supply.no_turns:
        return f"{start} measures turns, and {supply.no_turns}; use level 'sequence' or 'token'."
    thresholds = [one for part in parts_of(method) for _, one in getattr(part, "controllers", ())]
    if supply.unscaled and any(getattr(one, "by", None) == "difficulty" for one in thresholds):
        return (
            f"{start} reads how hard a prompt is off advantages that are divided by the standard "
            f"deviation of their group, and {supply.unscaled}."
        )
    if method.statistics_over is not None and not supply.whole_loop:
        return (
            f"{start} measures statistics over all ranks (per "
            f"{method.statistics_over.replace('_', '-')}), and {engine} passes one "
            f"micro-batch of one rank to a policy loss; {_TRL}."
        )
    if adapts(method) and not supply.whole_loop:
        return (
            f"{start} has a threshold that adapts, and {engine} passes a policy loss neither "
            f"the metrics of all ranks nor the end of an update; {_TRL}."
        )
    if Trait.NEEDS_KL_GRADIENT in method.traits and not supply.kl_gradient:
        return (
            f"{start} needs the gradient of the full KL, and {engine} passes only that of the "
            f"sampled token; {_LOOP}."
        )
    return None


def check(method: Method, engine: str) -> Method:
    """Return the method, or raise the `refusal` of the engine of that name as a ValueError."""
    if problem := refusal(method, ENGINES[engine]):
        raise ValueError(problem)
    return method


def trains_in(method: Method) -> list[str]:
    """Names of the engines that train a method with some settings: the column of the table.

    Example:
      >>> import trustclip as tc
      >>> trains_in(tc.method("tis")), trains_in(tc.method("full_kl"))
      (['TRL', 'verl', 'your loop'], ['TRL', 'your loop'])
    """
    return [name for name in ("TRL", "verl", "your loop") if refusal(method, ENGINES[name]) is None]


def parts_of(method: Method) -> Iterator[Method]:
    """A method and its parts, recursively."""
    yield method
    for part in getattr(method, "parts", ()):
        yield from parts_of(part)
