"""The loss head's competitors: the same values and gradients, each computed in its own way."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trustclip import head
from trustclip.head.product import Head, Tile, add_product

#: Sizes with the names of the models whose heads they are: (hidden, vocabulary).
MODELS = {"qwen3-1.7b": (2048, 151_936), "qwen3-8b": (4096, 151_936)}
#: Rows of logits that the naive entropy takes at once, as TRL's does.
_ENTROPY_ROWS = 128
#: Columns of a tile of TRL's head, as its trainers set it.
_COLUMNS = 32768


@dataclass(frozen=True)
class Shape:
    """Sizes of a problem.

    Args:
      tokens: N.
      hidden: H.
      vocabulary: V.
      device: ``"cpu"`` or ``"cuda"``.
      dtype: of hidden states and weight; that of the device when None.
    """

    tokens: int
    hidden: int
    vocabulary: int
    device: str = "cpu"
    dtype: str | None = None

    def __str__(self) -> str:
        return f"N = {self.tokens}, H = {self.hidden}, V = {self.vocabulary}"


@dataclass(frozen=True)
class Problem:
    """Hidden states of new and old policy, the head, tokens, and each log-probability's weight."""

    hidden: Tensor
    hidden_old: Tensor
    weight: Tensor
    ids: Tensor
    coefficients: Tensor
    entropy: bool

    @classmethod
    def of(cls, shape: Shape, trained: bool) -> "Problem":
        """Random, with the distributions of a language model: most tokens nearly sure."""
        g = torch.Generator(shape.device).manual_seed(0)
        random = partial(torch.randn, generator=g, device=shape.device)
        usual = "bfloat16" if shape.device == "cuda" else "float32"
        dtype = getattr(torch, shape.dtype or usual)
        weight = random(shape.vocabulary, shape.hidden)
        weight.mul_(2.8 / math.sqrt(shape.hidden))
        ids = torch.randint(0, shape.vocabulary, (shape.tokens,), generator=g, device=shape.device)
        hidden = random(shape.tokens, shape.hidden) + 1.6 * weight[ids]
        old = hidden + 0.05 * random(shape.tokens, shape.hidden)
        coefficients = random(shape.tokens) / shape.tokens
        return cls(
            hidden.to(dtype).requires_grad_(),
            old.to(dtype),
            weight.to(dtype).requires_grad_(trained),
            ids,
            coefficients,
            entropy=True,
        )

    def with_options(self, entropy: bool, zeros: float) -> "Problem":
        """The same tensors, with entropies or not, and with a share of rows that cannot matter."""
        coefficients = self.coefficients.clone()
        coefficients[: round(zeros * len(coefficients))] = 0
        return replace(self, coefficients=coefficients, entropy=entropy)

    def backward(self, logp: Tensor) -> Tensor:
        """Gradient of the hidden states; that of a trained weight is computed too."""
        loss = logp.to(self.coefficients.dtype) @ self.coefficients
        self.hidden.grad = self.weight.grad = None
        loss.backward()
        grad, self.hidden.grad, self.weight.grad = self.hidden.grad, None, None
        assert grad is not None
        return grad

    @property
    def active(self) -> Tensor:
        """Tokens with -100 for the rows that cannot matter."""
        return torch.where(self.coefficients != 0, self.ids, -100)


@torch.no_grad()
def products(problem: Problem) -> Callable[[], Tensor]:
    """The products alone, in the head's tiles: logits, gradient of hidden states, of the weight."""
    parts = Head(problem.weight.detach(), None, 1.0)
    hidden, trained = problem.hidden.detach(), problem.weight.requires_grad

    @torch.no_grad()
    def call() -> Tensor:
        operand, grad = parts.operand(hidden), hidden.new_zeros(hidden.shape, dtype=parts.dtype)
        blocks = list(parts.blocks(len(hidden)))
        tiles = Tile(parts, blocks, parts.dtype)
        of_weight = grad.new_zeros(parts.weight.shape) if trained else None
        for block in blocks:
            rows = operand[block]
            for columns in parts.columns(len(rows)):
                factor = parts.factor(columns)
                z = parts.logits(rows, factor, columns, tiles.of(len(rows), columns))
                z = z.to(parts.compute_dtype)
                add_product(grad[block], z, factor)
                if of_weight is not None:
                    add_product(of_weight[columns], z.T, rows)
        return grad

    return call


@torch.no_grad()
def whole_products(problem: Problem) -> Callable[[], Tensor]:
    """The same products as whole matrices in the dtype of the weight: nothing can take less."""
    weight, hidden, trained = (
        problem.weight.detach(), problem.hidden.detach(), problem.weight.requires_grad
    )  # fmt: skip

    @torch.no_grad()
    def call() -> Tensor:
        z = hidden @ weight.T  # [tokens, vocabulary]
        grad = z @ weight
        if trained:
            _ = z.T @ hidden
        return grad

    return call


def ours(problem: Problem) -> Callable[[], Tensor]:
    """`trustclip.head.selected_logprobs`."""

    def call() -> Tensor:
        ids, entropy = problem.active, problem.entropy
        logp, _ = head.selected_logprobs(problem.hidden, problem.weight, ids, entropy=entropy)
        return problem.backward(logp)

    return call


def with_bregman_kl(problem: Problem) -> Callable[[], Tensor]:
    """With KL(old || new); scores of the old policy are kept from when it was scored."""
    old = head.score(problem.hidden_old, problem.weight.detach(), problem.ids, mean=True)

    def call() -> Tensor:
        new = head.score(problem.hidden, problem.weight, problem.ids)
        head.bregman_kl(problem.hidden.detach(), new, problem.hidden_old, old)
        return problem.backward(new.logp)

    return call


def with_exact_kl(problem: Problem) -> Callable[[], Tensor]:
    """With `trustclip.head.exact_kl`, from hidden states alone."""
    plain = ours(problem)

    def call() -> Tensor:
        head.exact_kl(problem.hidden.detach(), problem.hidden_old, problem.weight.detach())
        return plain()

    return call


def naive(problem: Problem) -> Callable[[], Tensor]:
    """Logits whole, in float32; entropies without gradient, a few rows at a time."""

    def call() -> Tensor:
        logits = (problem.hidden @ problem.weight.T).float()  # [tokens, vocabulary]
        logp = logits.gather(1, problem.ids[:, None]).squeeze(1) - logits.logsumexp(dim=1)
        if problem.entropy:
            with torch.no_grad():
                _entropies(rows.log_softmax(dim=1) for rows in logits.split(_ENTROPY_ROWS))
        return problem.backward(logp)

    return call


def _entropies(rows: Iterable[Tensor]) -> list[Tensor]:
    """Entropies of blocks of rows of log-probabilities."""
    return [torch.special.entr(logp.exp()).sum(dim=1) for logp in rows]


def naive_with_kl(problem: Problem) -> Callable[[], Tensor]:
    """Both policies' logits whole, both normalised."""

    def call() -> Tensor:
        logp = (problem.hidden @ problem.weight.T).float().log_softmax(dim=1)
        with torch.no_grad():
            old = (problem.hidden_old @ problem.weight.T).float().log_softmax(dim=1)
            for a, b in zip(old.split(_ENTROPY_ROWS), logp.split(_ENTROPY_ROWS), strict=True):
                torch.nn.functional.kl_div(b, a, reduction="none", log_target=True).sum(dim=1)
                _entropies([b])
        return problem.backward(logp.gather(1, problem.ids[:, None]).squeeze(1))

    return call


def trl(problem: Problem) -> Callable[[], Tensor]:
    """TRL's chunked head, its trainers' default."""
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction

    outputs = ("log_probs", "entropy") if problem.entropy else ("log_probs",)

    def call() -> Tensor:
        output: Any = ChunkedLogProbFunction.apply(
            problem.hidden, problem.weight, None, problem.ids, 1.0, _COLUMNS, None, 1.0, outputs
        )
        return problem.backward(output[0])

    return call
