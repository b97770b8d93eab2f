"""A right method, and methods that are wrong in every reading, as their authors write them."""

import torch

from trustclip import Method, Surrogate, TokenBatch, definition, gates


def inside(batch: TokenBatch, bound: float = 0.2) -> torch.Tensor:
    return batch.log_ratio.abs() <= bound


def outward(batch: TokenBatch, satisfied: torch.Tensor) -> torch.Tensor:
    return gates.keeps_gradient(satisfied, batch.log_ratio, batch.advantages, "outward")


@definition
class Right(Method):
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        return gates.hard(batch, outward(batch, inside(batch)))


@definition
class SignInGate(Method):
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        x, a = batch.log_ratio, batch.advantages
        return gates.hard(batch, gates.keeps_gradient(inside(batch), x, -a, "outward"))


@definition
class Negated(Method):
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        right = Right().surrogate(batch)
        return Surrogate(-right.objective, right.kept)


@definition
class MeanOverPadding(Method):
    bound: float = 0.1

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        moved = batch.log_ratio.abs().mean(dim=1, keepdim=True)
        return gates.hard(batch, outward(batch, moved <= self.bound))


@definition
class AnotherKept(Method):
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        kept = outward(batch, inside(batch))
        return Surrogate(gates.safe_exp(batch.log_ratio) * batch.advantages, kept)


@definition
class Detached(Method):
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        right = Right().surrogate(batch)
        return Surrogate(right.objective.detach(), right.kept)


@definition
class RatioInverted(Method):
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        return gates.soft(batch, gates.safe_exp(batch.logp_old - batch.logp))


@definition
class BoundsSwapped(Method):
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        return gates.interval(batch, (0.2, -0.2))


@definition
class AdvantageSquared(Method):
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        return gates.soft(batch, gates.safe_exp(batch.log_ratio) * batch.advantages)


@definition
class MeanOverBatch(Method):
    bound: float = 0.1

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        moved = batch.log_ratio.abs().sum() / batch.mask.sum()
        return gates.hard(batch, outward(batch, moved <= self.bound))


@definition
class MeanOverSequence(Method):
    bound: float = 0.1

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        moved = batch.log_ratio.abs().sum(1, keepdim=True) / batch.mask.sum(1, keepdim=True)
        return gates.hard(batch, outward(batch, moved <= self.bound))


@definition
class LogRatioForRatio(Method):
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        return gates.hard(batch, outward(batch, (batch.log_ratio - 1).abs() <= 0.2))


@definition
class MinimumOfConstant(Method):
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        a = batch.advantages
        return Surrogate(torch.min(gates.safe_exp(batch.log_ratio) * a, a), batch.mask)


@definition
class OverflowBehindTheGate(Method):
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        kept = outward(batch, inside(batch))
        ratio = torch.where(kept, batch.log_ratio.exp(), 1.0)
        return Surrogate(ratio * batch.advantages, kept)


@definition
class HidesNaN(Method):
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        kept = inside(batch)
        ratio = torch.where(kept, gates.safe_exp(torch.where(kept, batch.log_ratio, 0.0)), 1.0)
        return Surrogate(ratio * batch.advantages, kept)


@definition
class AnotherInterval(Method):
    def log_interval(self, p_old: torch.Tensor | None = None) -> tuple[float, float]:
        return -0.3, 0.3

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        return Right().surrogate(batch)


@definition
class ReadsWhatItDoesNotRequire(Method):
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        assert batch.entropy is not None, "no entropy"
        return gates.hard(batch, batch.entropy < 1)


@definition
class ByChance(Method):
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        return gates.hard(batch, torch.rand_like(batch.logp) < 0.5)


@definition
class Reduced(Method):
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        right = Right().surrogate(batch)
        return Surrogate(right.objective.sum(dim=1), right.kept)


@definition
class KeptAsNumbers(Method):
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        right = Right().surrogate(batch)
        return Surrogate(right.objective, right.kept.float())


class Undecorated(Right):
    other: float = 0.1  # would be ignored
