"""Score centering: any token method without its drift."""

from torch import Tensor

from trustclip.constraints import drift
from trustclip.constraints.base import Trait, definition
from trustclip.constraints.batch import LogBounds, Surrogate, TokenBatch
from trustclip.constraints.compose import Composite
from trustclip.constraints.masked import zero_masked
from trustclip.constraints.registry import Part
from trustclip.methods.importance_sampling import ImportanceSampling


@definition
class Centered(Composite):
    r"""Centered: any token method is trained without its drift, its mean over the sampler's tokens.

    $$
    A_t\Big( c_{y_t} \nabla\log\pi_\theta(y_t) - \sum_v q_v\, c_v \nabla\log\pi_\theta(v) \Big)
    $$

    with $c_v$ the coefficient that ``inner`` has at candidate $v$, for the sign of $A_t$, and $q$
    the policy that sampled. Where $q$ is not the policy in training (another precision, older
    weights, a few updates) the plain update has a mean that holds no reward, its drift, and that
    recurs with each update; what is left here is the covariance of advantage and score.
    Groups of centered advantages do not remove it: their mean is zero over whole answers, not at
    every position.

    *What is summed over* is in ``batch.candidates`` (`trustclip.constraints.candidates`): the whole
    vocabulary, the set that the sampler kept, or its top k with a model of the rest; the first two
    are exact. A position without candidates is left as it is.

    *What it takes away.* The drift of a clip or of ``atr`` points back to the sampler, for either
    sign of the advantage; that of REINFORCE away from it where the advantage is negative; full
    importance weights have none (`trustclip.constraints.drift`, and the metrics ``drift/*``). A
    centered gate does not stop tokens any more. If it cuts the sampled token, with $C$ what it cuts
    among the candidates, $A \sum_{v \in C} p_v \nabla\log p_v$ is left, so that a rewarded token
    beyond the bound goes on rising. With several updates per generation watch ``k3``, or center a
    method without a gate.

    It is the outermost method: ``centered(inner=icepop(...))``. A penalty is added to the centered
    method: ``tc.method("centered", inner="clip") + tc.penalty("k2")``.

    Args:
      inner: the method: its name, or a mapping with ``name`` and hyper-parameters. Its coefficient
        must be one of the token alone, and vanish with the advantage.

    Raises:
      ValueError: ``inner`` measures sequences or batches, or has a pull of its own.

    Example:
      >>> import torch, trustclip as tc
      >>> from trustclip.constraints.candidates import Candidates
      >>> z, q = torch.zeros(1, 1, 3, requires_grad=True), torch.tensor([[[0.6, 0.3, 0.1]]])
      >>> p = z.log_softmax(dim=2)
      >>> batch = tc.TokenBatch(p[..., 0], q.log()[..., 0], torch.ones(1, 1),
      ...                       torch.ones(1, 1) > 0, candidates=Candidates(p, q.log(), q.log()))
      >>> tc.policy_loss(tc.method("centered", inner="reinforce"), batch).value.backward()
      >>> z.grad  # of the likeliest token, whose sampler's probability is 0.6: -(e_y - q)
      tensor([[[-0.4000,  0.3000,  0.1000]]])

    References:
      Marek, Ryabinin, `Score centering stabilizes off-policy reinforcement learning
      <https://arxiv.org/abs/2609.20807>`_, 2026
    """

    also_requires = ("candidates",)

    inner: Part = ImportanceSampling()

    def __post_init__(self) -> None:
        super().__post_init__()
        if problem := drift.centering_problem(self.inner):
            raise ValueError(
                f"{self.inner.name!r} cannot be centered: {problem}. Centering asks what a method "
                "does to tokens that were not sampled: use one that looks at one token, like atr."
            )
        if Trait.MOVES_WITHOUT_ADVANTAGE in self.inner.traits:
            raise ValueError(
                f"{self.inner.name!r} cannot be centered: it moves tokens without an advantage, "
                "and that pull would be taken away; add a penalty to the centered method."
            )

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        return self.inner.log_interval(p_old)

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        (inner,) = self.surrogates(batch)
        mean = drift.objective(self.inner, self.of_part(0, batch))  # [batch, time]
        objective = inner.objective - zero_masked(mean, batch.mask)
        return Surrogate(objective, inner.kept, inner.extras)
