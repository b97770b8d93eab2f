"""TRL's asynchronous trainer with any method in place of its clip.

Its loss is computed in one public function, `compute_loss`, with the log-probabilities of the
policy in training and those of the sampler: there is one ratio, and its old policy is the sampler.
TRL reads the advantages before it asks the model. So the first of two calls only tells what TRL
asks; the model answers once, and in the second call TRL has the method's advantages and that
answer. As in `trustclip.engines.trl.trainer` the rest of the loss stays TRL's.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trustclip.constraints.base import Method
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.diagnostics import Window
from trustclip.constraints.gradients import gradient
from trustclip.constraints.registry import as_method
from trustclip.engines.limits import check
from trustclip.engines.trl import gradient_check, upstream
from trustclip.engines.trl.config import replaced
from trustclip.engines.trl.inputs import inject
from trustclip.engines.trl.recording.shares import clip_ratios

#: Name in `trustclip.engines.limits.ENGINES`.
ENGINE = "TRL's AsyncGRPOTrainer"
#: Key of a sample's version of the weights, and of the update at which they were published.
_SAMPLED = "trustclip_sampled"

_Base: Any = upstream.asynchronous_trainer()


class _Asked(Exception):
    """What TRL asks the model, as the arguments of its forward pass."""


class ConstrainedAsyncGRPOTrainer(_Base):
    """TRL's `AsyncGRPOTrainer` that trains with a method.

    Takes its arguments, and the method. Logs ``trustclip/*`` (see
    `trustclip.constraints.diagnostics`), the metrics of the sampler by the lag of its weights too,
    and gives ``clip_ratio/*`` the values of the method's own gate.

    Args:
      *args: see TRL.
      method: a name, a mapping of ``name`` and hyper-parameters, or a `trustclip.Method`.
      **kwargs: see TRL.

    Raises:
      ValueError: an unknown method; one that needs what this trainer does not have, or whose
        weights do not depend on the ratio, so that nothing corrects for a sampler that lags; bounds
        of TRL's own clip in the config.
    """

    _tag_names: ClassVar = ["trl", "async-grpo", "trustclip"]

    def __init__(self, *args: Any, method: Method | str | Mapping[str, Any] = "atr", **kwargs: Any):
        self.method = _check_corrects(check(as_method(method), ENGINE))
        super().__init__(*args, **kwargs)
        if problems := [*replaced(self.args)]:
            raise ValueError(problems[0])
        self._window = Window()
        self._verified = upstream.is_tested(upstream.RELEASE)  # whether its gradient is right
        self._published = {0: 0}  # update at which each version of the weights was published

    # -- the lag of each sample --------------------------------------------------------------------

    def _sync_weight(self) -> None:
        super()._sync_weight()
        self._published[self.model_version] = self.state.global_step

    def get_train_dataloader(self) -> Any:
        if self.accelerator.is_main_process:
            self.rollout_queue = _Dated(self.rollout_queue)
        loader = super().get_train_dataloader()
        inner = getattr(loader, "base_dataloader", loader)  # what Accelerate's loader iterates over
        inner.collate_fn = partial(self._collate, inner.collate_fn)
        return loader

    def _collate(self, collate: Callable[[Any], dict[str, Any]], examples: Any) -> dict[str, Any]:
        """TRL's batch, one row a rank, and of each sample the update that its weights are of."""
        (rows,) = examples
        versions = [[one["metrics"].pop(_SAMPLED) for one in row.samples] for row in rows]
        first = min(self._published.values())
        updates = [torch.tensor([self._published.get(v, first) for v in row]) for row in versions]
        return {**collate(examples), _SAMPLED: pad_sequence(updates, True)}  # [ranks, samples]

    # -- the loss ----------------------------------------------------------------------------------

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        inputs = dict(inputs)
        asked = self._asked(inputs, *args, **kwargs)
        before = time.time()
        answer = model(**asked)
        self._step_forward_s += time.time() - before  # TRL times its own call, of the answer
        c, batch, surrogate = self._constrain(inputs, answer)
        try:
            loss = super().compute_loss(lambda **_: answer, inputs, *args, **kwargs)
        finally:
            self.epsilon_low = self.epsilon_high = torch.inf
        self._verified = self._verified or gradient_check.same(
            loss, answer.log_probs, _per_place(inputs, answer.log_probs, batch.pack(c)), self.method
        )
        self._window.add(batch, surrogate, self.method)
        for name, value in clip_ratios(
            batch, surrogate, self._sum, self.accelerator.gather
        ).items():
            # Replaces TRL's values, which describe its own clip.
            self._metrics["train"][f"clip_ratio/{name}"][-1] = value
        return loss

    def _asked(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The arguments with which TRL calls the model."""

        def model(**given: Any) -> None:
            raise _Asked(given)

        try:
            super().compute_loss(model, *args, **kwargs)
        except _Asked as question:
            return question.args[0]
        raise RuntimeError("this release of TRL computed its loss without the model.")

    @torch.no_grad()
    def _constrain(
        self, inputs: dict[str, Any], answer: Any
    ) -> tuple[Tensor, TokenBatch, Surrogate]:
        """Set advantages and bounds with which TRL's loss has the method's gradient."""
        selected = inputs["token_index"] >= 0  # [1, tokens]; the other tensors of it are [tokens]
        place, sample = inputs["token_index"][selected], inputs["segment_id"][selected]
        old, advantages = inputs["old_log_probs"][selected], inputs["advantages"][selected]
        sampled = inputs.get(_SAMPLED)
        batch = TokenBatch.packed(
            answer.log_probs.flatten()[place],
            old,
            advantages,
            lengths=sample.bincount(),
            logp_rollout=old,
            entropy=answer.entropy.flatten()[place],
            lag=None if sampled is None else self.state.global_step - sampled[0][sample],
        )
        c, surrogate = gradient(self.method, batch)  # [batch, time]
        given = {"old_per_token_logps": batch.logp_old}
        low, high = inject(given, batch, c, surrogate)
        self.epsilon_low, self.epsilon_high = batch.pack(low), batch.pack(high)
        for name, value in (("advantages", "advantages"), ("old_log_probs", "old_per_token_logps")):
            packed = batch.pack(given[value]).to(inputs[name].dtype)
            inputs[name] = inputs[name].masked_scatter(selected, packed)
        return c, batch, surrogate

    def _sum(self, x: Tensor) -> Tensor:
        """Sum over ranks."""
        return self.accelerator.reduce(x, reduction="sum")

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        window, self._window = self._window, Window()
        logs.update({f"trustclip/{k}": value for k, value in window.read(self._sum).items()})
        super().log(logs, *args, **kwargs)


class _Dated:
    """TRL's queue of samples, which writes the version of its weights into each one's metrics."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        sample = self._queue.get(*args, **kwargs)
        return replace(sample, metrics={**sample.metrics, _SAMPLED: sample.model_version})


def _per_place(inputs: Mapping[str, Any], log_probs: Tensor, packed: Tensor) -> Tensor:
    """Sum of the tokens' values at each place of the model's answer, which samples may share."""
    place = inputs["token_index"][inputs["token_index"] >= 0]
    sums = torch.zeros(log_probs.numel(), dtype=packed.dtype, device=packed.device)
    return sums.index_add(0, place, packed).view_as(log_probs)


def _check_corrects(method: Method) -> Method:
    """Raise a ValueError where no weight or gate of a method depends on the ratio."""
    x = torch.linspace(-3, 3, 12, dtype=torch.float64)[:, None].repeat(1, 2)
    old, ones = torch.full_like(x, -4.0), torch.ones_like(x)
    batch = TokenBatch(old + x, old, ones, ones > 0, logp_rollout=old, entropy=ones)
    weights = [gradient(method, replace(batch, advantages=a * ones))[0] / a for a in (1.0, -1.0)]
    if all(torch.allclose(weight, ones) for weight in weights):
        raise ValueError(
            f"{method.name!r} cannot be trained in {ENGINE}: it does not depend on the ratio, "
            "so nothing corrects for a sampler whose weights are older; use "
            "'importance_sampling' in its place."
        )
    return method
