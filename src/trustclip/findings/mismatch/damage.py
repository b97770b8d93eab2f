"""What a mismatch costs at the user's length, before any training: weights, masks, tight gates."""

from trustclip.constraints.base import Method
from trustclip.constraints.noise import capped_weight, cut_by_noise, effective_share, variance
from trustclip.constraints.sampler import Pairs
from trustclip.findings.facts import CUT_BY_NOISE
from trustclip.findings.finding import Finding
from trustclip.findings.rows import percent

#: The usual cap of a weight of whole completions.
CAP = 2.0
#: Names of findings whose differences are noise, which adds up over a completion.
ADDS_UP = ("none", "precision", "finer", "sharper", "tail", "stale", "weights")


def sentence(pairs: Pairs, length: int) -> str:
    """What weights of whole completions lose at a length of completions, in tokens.

    The differences are shifted so that their ratios have the mean 1, as those of samples of the
    whole vocabulary must: over a long completion the error of a mean would be larger than they are.
    """
    d = pairs.trainer.double().cpu() - pairs.sampler.double().cpu()
    d = d - d.clamp(max=10.0).exp().mean().log()
    v = variance(d)
    share = effective_share(v, length)
    few = "under 0.01" if share < 1e-4 else f"{100 * share:.2g}"
    return (
        f"At {length:,} tokens, completions with a weight for the whole completion count like "
        f"{few} % of their number (effective sample size), and their weights, capped at {CAP:g}, "
        f"have the mean {capped_weight(v, length, CAP):.2g} instead of 1."
    )


def too_tight(method: Method, pairs: Pairs, length: int) -> Finding | None:
    """A warning where the trainer's own noise closes a gate; None where it does not."""
    noise = (pairs.floor or {}).get("batch")
    if noise is None or method.requires:
        return None
    noise = noise[noise.isfinite()]
    share = cut_by_noise(method, noise, length) if len(noise) else 0.0
    if share <= CUT_BY_NOISE:
        return None
    text = (
        f"The threshold of {method.name} lies inside the noise: on equal weights, two passes of "
        f"the trainer in other batches differ by {noise.abs().mean().item():.2g} nats per token. "
        f"At {length:,} tokens this noise alone makes the gate cut {percent(share)} of tokens. "
        "Widen the threshold, or score in float32."
    )
    return Finding("gate/bound_in_noise", "warning", text, {"gated": share})
