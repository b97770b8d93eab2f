"""TRL: train with any method in `GRPOTrainer`, without a copy of its loss.

TRL computes a loss whose gradient in the log-probability of a token is ``-w A`` before
aggregation. We give it per-token advantages ``c A / w`` instead of ``A``, so that the gradient is
that of our method, and everything TRL does around it (aggregation, KL to a reference, correction of
the sampler's log-probabilities, entropy bonus, LoRA, accumulation, distribution) stays TRL's. Its
clip is open, but on tokens that the method has cut: there it holds the loss at the method's value,
so that the logged loss is that of the method, too. This relies on `_compute_loss` reading
``inputs["advantages"]`` and the bounds of its clip after `_get_per_token_logps_and_entropies` has
returned. `trustclip.engines.trl.upstream` says what else another release is looked at for.

In one file because TRL's trainer is one class, and what it overrides shares the phase.
"""

import logging
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from trustclip.constraints import diagnostics
from trustclip.constraints.adaptive import adapts, restored, state
from trustclip.constraints.base import Trait, moves_candidates
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.gradients import gradient, gradient_with_candidates
from trustclip.constraints.selection import only_what_matters
from trustclip.engines.trl import checkpoints, fast_paths
from trustclip.engines.trl.additions import addition
from trustclip.engines.trl.config import ConstrainedGRPOConfig
from trustclip.engines.trl.gradient_check import verified
from trustclip.engines.trl.inputs import LAG, STATISTICS, inject, token_batch, token_mask
from trustclip.engines.trl.phases import Generating, PassResult, Training
from trustclip.engines.trl.recording.records import Recorded, attach_recorders
from trustclip.engines.trl.recording.shares import clip_ratios
from trustclip.engines.trl.sampling import generate, sampled
from trustclip.engines.trl.sampling.decoding import Decoder
from trustclip.engines.trl.sampling.plain import disagreement
from trustclip.engines.trl.scoring import candidates, hidden, sharing, skipping
from trustclip.engines.trl.scoring.exact_kl import KLWatch
from trustclip.engines.trl.scoring.forward import Request, use_head
from trustclip.engines.trl.upstream import (
    RELEASE,
    SCORING,
    GRPOTrainer,
    announced,
    by_unsloth,
    end_tokens,
    grpo_trainer,
    is_tested,
    own_port,
)
from trustclip.support import schemas

logger = logging.getLogger(__name__)

#: What a checkpoint holds of a micro-batch, at least, and of the metrics between two log lines.
_BATCH = schemas.mapping(
    "Batch",
    dict.fromkeys(
        ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages"), Tensor
    ),
    more=True,
)
_SHADOWS = schemas.mapping("Shadows", {"labels": list[str], "sums": tuple[Tensor, ...] | None})
_WINDOW = schemas.mapping(
    "Window",
    {
        "metrics": dict[str, tuple[Tensor, Tensor]],
        "histogram": Tensor | None,
        "sampler": Tensor | None,
        "shadows": _SHADOWS,
    },
)

_NOTHING_ACTED = (
    "this release of TRL computed its loss without asking for log-probabilities, so no constraint "
    "acted; use a release that trustclip's requirements allow."
)


class ConstrainedGRPOTrainer(Recorded, GRPOTrainer):
    """`trl.GRPOTrainer` that trains with the method set in its config.

    Takes the arguments of `trl.GRPOTrainer`; ``args`` must be a `ConstrainedGRPOConfig`. Without
    it, the config has TRL's defaults, the default method and ``num_iterations=2``, the fewest with
    which a constraint acts. Logs ``trustclip/*`` (see `trustclip.constraints.diagnostics`) and
    gives ``clip_ratio/*`` the values of the method's own gate, over all tokens.
    Its state between two updates is `progress`, of the types in `carried` and `in_progress`;
    `trustclip.train.trainers` makes it continue exactly after a kill.

    Raises:
      ValueError: the method needs something that this model or its sampler does not have.
    """

    args: ConstrainedGRPOConfig
    accelerator: Any
    model: Any
    processing_class: Any
    max_completion_length: int
    _tag_names: ClassVar = ["trl", "grpo", "trustclip"]
    _name = "GRPO with a policy-divergence constraint"
    #: Attributes that the next update depends on, with their types.
    carried: ClassVar = {
        "_buffered_inputs": list[_BATCH] | None,  # the samples being trained on,
        "_step": int,  # and the place in them
        "_last_closed": int,
        "_recorded_tokens": int,
        "_total_train_tokens": schemas.Number,
        "_current_train_step_time": float,
        "entropy_coef": float,
        "_last_world_entropy": schemas.Number,
        "_entropy_window_stats": Tensor | None,
    }
    #: Types of what `progress` holds.
    in_progress: ClassVar = {
        "windows": dict[Literal["train", "eval"], _WINDOW],
        "method": schemas.Numbers,
        "old_head": Tensor | None,
    }
    #: Arguments that give them their meaning.
    shape: ClassVar = ("num_generations", "steps_per_generation", "num_iterations")
    #: What is under way, and would be abandoned by a stop.
    unfinished: str = "update"

    def __init__(self, model: Any, reward_funcs: Any = None, args: Any = None, **kwargs: Any):
        if args is None:
            name = model if isinstance(model, str) else model.config._name_or_path
            args = ConstrainedGRPOConfig(f"{name.split('/')[-1]}-GRPO", num_iterations=2)
        if not isinstance(args, ConstrainedGRPOConfig):
            raise ValueError(f"`args` must be a ConstrainedGRPOConfig, got {type(args).__name__}.")
        if problem := by_unsloth(grpo_trainer.GRPOTrainer):  # imported after this module
            raise ValueError(problem)
        self.method, self.metrics = args.constraint(), args.metrics
        self._phase: Generating | Training | None = None
        self._inner: tuple[Any, Any] = None, None  # the model, and what is inside of its wrappers
        self._watch_with(args.watched())
        self._update = diagnostics.Window()  # of the update under way, for thresholds that adapt
        self._last_closed = 0  # update in which the gate last closed on a token
        self._declined: set[str] = set()
        self._acted = False  # whether the constraint has acted on a loss of TRL
        self._verified = is_tested(RELEASE)  # whether its loss has the gradient of the method
        #: What was added to the model before TRL wraps its forward pass, which hides it.
        self._added = None if isinstance(model, str) else addition(model)
        self._compared = False  # whether the decoder has been compared with the model's own pass
        self._apart: str | None = None  # how they differ
        if args.use_vllm and args.vllm_mode == "colocate":
            own_port()
        with announced(args, self.method):
            super().__init__(model, reward_funcs, args, **kwargs)
        self.beta = args.beta  # the price of TRL's own penalty
        self.importance_sampling_level = "token"  # the method's own level is in its gradient
        self._open_clip()
        fast_paths.check_sampler(self)  # before the model is changed
        if self.rollout_func is not None:
            self.rollout_func = sampled.same_lengths(self.rollout_func)
        self._examined = False  # whether samples have been checked
        self._likeliest = args.kept_candidates()
        if self.use_vllm and self._likeliest:
            generate.allow_logprobs(self.vllm_generation, self._likeliest)
        if self.accelerator.device.type == "cpu":
            fast_paths.keep_memory()
        if args.checkpoints_unasked:
            fast_paths.keep_states(self)
        self._request = self._install_head()  # before the divergences, which use this head's scores
        self._watch = KLWatch(
            self._unwrapped(),
            self.method,
            self.temperature,
            self._request,
            every=args.exact_kl_every,
            updates=args.schedule().updates_per_generation,
            autocast=self.accelerator.mixed_precision,
        )
        if any(isinstance(m, nn.Dropout) and m.p > 0 for m in self.model.modules()):
            warnings.warn(
                "the model has active dropout: two passes of one policy differ, so ratios differ "
                "from 1 before any update. Set disable_dropout=True, and lora_dropout=0.",
                stacklevel=2,
            )
        attach_recorders(self)  # last: they record a trainer that has passed all checks

    def _takes(self, path: fast_paths.FastPath) -> bool:
        """Whether a fast path is taken; the reason for declining it is logged once."""
        reason = fast_paths.obstacle(path, self)
        if reason is not None and path not in self._declined:
            self._declined.add(path)
            logger.info("fast path %r is not taken: %s.", path, reason)
        return reason is None

    def _install_head(self) -> Request | None:
        """Install trustclip's output head in the model if that is requested or faster."""
        if self.args.share_prompts is None:
            self.args.share_prompts, decision = fast_paths.sharing_pays(self)
            if self.accelerator.is_main_process:
                print(decision)
        elif self.args.share_prompts and (reason := fast_paths.obstacle("sharing", self)):
            raise ValueError(f"share_prompts cannot serve this model: {reason}. Leave it out.")
        if self._takes("head"):
            request = use_head(self._unwrapped(), self.temperature)
            if self.args.share_prompts:
                sharing.share_prompts(hidden.language_model(self._unwrapped()))
                request.shares = True
            return request
        if self.args.head == "trustclip":
            reason = fast_paths.obstacle("head", self)
            raise ValueError(f"head='trustclip' cannot serve this model: {reason}. Use 'auto'.")
        return None

    # -- generating: samples, the policy that made them, rewards -----------------------------------

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self._phase = phase = Generating()
        self.unfinished = "generation"
        beta = self.beta  # TRL scores the reference model with a price alone, and pays it itself
        self.beta = beta or float("logp_ref" in self.method.requires)
        try:
            output = super()._generate_and_score_completions(inputs)
            self.leave_if_asked()
        finally:
            self._phase, self.unfinished, self.beta = None, "update", beta
        ids, old = output["completion_ids"], output.get("old_per_token_logps")
        self._number_completions(output)  # first: keys of tokens and all records use the numbers
        scored = phase.result_of(old)
        if scored.entropies is not None:
            output["entropy_old"] = scored.entropies
        if scored.evidence is not None and old is not None:
            output |= self._watch.keep(self._unwrapped(), scored.evidence, ids, old)
        if (further := phase.further(ids.shape[1], ids.device)) is not None:
            entries = zip(candidates.CANDIDATES, (*further, scored.further), strict=True)
            output |= {name: value for name, value in entries if value is not None}
        if old is not None and self.method.statistics_over == "generation":
            statistics = self.method.statistics(self._tokens(output, old, old), self._sum)
            output |= {STATISTICS + name: value for name, value in statistics.items()}
        self._record_generation(output)
        if self._mode == "train":
            self._record_entropy(output)
        return output

    def _prepare_inputs(self, generation_batch: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        before = self._buffered_inputs
        inputs, parts = super()._prepare_inputs(generation_batch), self._buffered_inputs
        window = self.args.gradient_accumulation_steps
        # A loss that a micro-batch normalises alone depends on which completions it has.
        alone = self.loss_type == "bnpo" or self.method.statistics_over == "micro_batch"
        shares = self._request is not None and self._request.shares and not alone
        whole = self.args.whole_groups
        # Once a generation: TRL has then replaced its buffer of micro-batches.
        if parts is before or not parts or not (whole or (shares and len(parts) % window == 0)):
            return inputs
        self._buffered_inputs = sharing.regroup(parts, len(parts) if whole else window)
        return self._buffered_inputs[self._step % len(parts)]

    def _generate(self, prompts: Any) -> Any:
        output = super()._generate(prompts)
        self.leave_if_asked()
        return output

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        output = self._sample(*args, **kwargs)
        if self.accelerator.num_processes == 1:  # ranks differ in their number of turns
            self.leave_if_asked()
        return output

    def _sample(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        """Completions of one turn; unfinished ones where the run is to stop."""
        turn = partial(super()._generate_single_turn, prompt_ids, *args, **kwargs)
        phase = self._phase
        if not isinstance(phase, Generating):
            return turn()
        if not self._takes("decoder"):
            model = self._unwrapped()
            supplied = self.use_vllm or fast_paths.unrecorded(self)
            with generate.stoppable(model, self.stopping):
                if self.use_vllm and (k := self._likeliest):
                    every = 0 < self.args.top_k <= k
                    with generate.with_likeliest(self.vllm_generation, k, every) as further:
                        output = turn()
                    phase.likeliest = further
                    return output
                if supplied:
                    return turn()
                tokens, logps, phase.likeliest = sampled.with_logps(model, turn, self._likeliest)
            return tokens, logps
        dtype = fast_paths.DTYPES[self.accelerator.mixed_precision]
        decoder = Decoder(self._unwrapped(), dtype, self._likeliest)
        limit, ends = self.max_completion_length, set(end_tokens(self))
        decoded = decoder.decode(prompt_ids, limit, ends, self.temperature, self.stopping)
        if not self._compared:
            self.leave_if_asked()  # every rank compares, so every rank can leave here
            self._compared = True
            self._apart = disagreement(self, prompt_ids, decoded, decoder.dtype)
            if self._apart is not None:
                return self._sample(prompt_ids, *args, **kwargs)
        logps = [completion.logps for completion in decoded]
        phase.likeliest = [one.likeliest for one in decoded if one.likeliest is not None]
        if decoder.dtype == torch.float32:  # else the passes round differently
            phase.sampled.append(logps)
        return [completion.tokens for completion in decoded], logps

    # -- scoring: TRL asks for log-probabilities in both phases ------------------------------------

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if (unknown := sorted({*kwargs} - {*SCORING.split()})) and not is_tested(RELEASE):
            raise TypeError(
                f"trl {RELEASE} asks for log-probabilities with {', '.join(unknown)}, which "
                "trustclip does not know and would leave out: install a tested release of TRL."
            )
        arguments = (model, input_ids, attention_mask, *args)
        match self._phase:
            case Generating() as phase:
                return self._score_sampled(phase, *arguments, **kwargs)
            case Training() as phase:
                return self._score_trained(phase, *arguments, **kwargs)
            case None:
                return self._score(None, *arguments, **kwargs)[:3]

    def _score(
        self, policy: Any, model: Any, input_ids: Tensor, mask: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """TRL's scores, and the evidence of a pass of ``policy`` (``"old"``, ``"new"`` or None)."""
        if self._request is not None:
            self._request.entropy = kwargs.get("compute_entropy", False)
        score = super()._get_per_token_logps_and_entropies
        if policy is None:
            return *score(model, input_ids, mask, *args, **kwargs), None
        with self._watch.watching(self.accelerator.unwrap_model(model), policy) as passes:
            scores = score(model, input_ids, mask, *args, **kwargs)
        return *scores, passes.of_completions(scores[0].shape[1])

    def _score_sampled(
        self, phase: Generating, model: Any, input_ids: Tensor, mask: Tensor, *args: Any, **kw: Any
    ) -> Any:
        """Log-probabilities under the sampling policy; the decoder's own where it sampled."""
        # Not with beta: TRL then scores the reference policy through here, too.
        recorded = None if self.beta else phase.decoder_logps(mask, args[0])  # [batch, time]
        policy = "old" if self._watch.wants_generation(self.state.global_step) else None
        entropy = "entropy_old" in self.method.requires
        sampler = phase.further(args[0], input_ids.device)
        of_sampler = None if sampler is None else sampler.logps  # [batch, time, k]
        if recorded is not None and policy is None and not entropy:
            phase.passes.append(PassResult(recorded, further=of_sampler))
            return recorded, None, None
        kw |= {"compute_entropy": True} if entropy else {}
        ids = None if sampler is None else sampler.ids
        with self._leaving_between_passes(model), candidates.querying(self._request, ids) as query:
            logps, entropies, aux, old = self._score(policy, model, input_ids, mask, *args, **kw)
        further = None if query is None else query.of_completions[0]
        if recorded is not None:
            logps, further = recorded, of_sampler
        elif self.args.replay and further is not None and sampler is not None:
            logps, further = candidates.replay(logps, further, sampler.logps)
        phase.passes.append(PassResult(logps, old, entropies if entropy else None, further))
        return logps, entropies, aux

    @contextmanager
    def _leaving_between_passes(self, model: nn.Module) -> Iterator[None]:
        """Context in which a run that is to stop does so before the model's next pass.

        Ranks whose completions the decoder has sampled may need different numbers of passes.
        """
        if self.accelerator.num_processes > 1 and self._takes("decoder"):
            yield
            return
        hook = model.register_forward_pre_hook(lambda *_: self.leave_if_asked(), prepend=True)
        try:
            yield
        finally:
            hook.remove()

    def _score_trained(
        self, phase: Training, model: Any, input_ids: Tensor, mask: Tensor, *args: Any, **kw: Any
    ) -> Any:
        """Log-probabilities under the policy in training, on which the method acts."""
        inputs = phase.inputs
        generated = inputs.get("generated")
        # Where all completions were sampled from the current policy, ratios are 1. [batch]
        on_policy = generated is not None and bool((generated == self.state.global_step).all())
        skips = self._mode == "train" and self._takes("skipping")
        rows = skipping.rows_that_matter(inputs) if skips else None

        def select(values: Tensor) -> Tensor:
            return values if rows is None else values[rows]

        input_ids, mask = select(input_ids), select(mask)
        policy = "new" if self._watch.wants(inputs) and not on_policy else None
        ids = inputs.get(candidates.CANDIDATES[0])
        ids = None if ids is None else select(ids)
        with candidates.querying(self._request, ids) as query:
            logps, entropies, aux, new = self._score(policy, model, input_ids, mask, *args, **kw)
        further, collision = (None, None) if query is None else query.of_completions
        if self.args.replay and further is not None:
            rollout = select(inputs[candidates.CANDIDATES[1]])
            logps, further = candidates.replay(logps, further, rollout)
        unwrapped = self._unwrapped()
        kl = self._watch.divergences(unwrapped, inputs, token_mask(inputs), new, rows)
        if rows is not None:
            logps, entropies = skipping.widen(inputs, rows, logps, entropies)
        if on_policy:  # so that the ratio is exactly 1; not earlier: skipped rows use the old ones
            inputs.pop("old_per_token_logps", None)
        measured = {"entropy": entropies.detach(), **kl}  # [batch, time] each
        if further is not None and collision is not None:
            given = inputs, (further, collision), rows, on_policy
            measured["candidates"] = candidates.of_inputs(*given)
        # When TRL goes on to its loss, our advantages and bounds must be in place of its own.
        phase.logps, phase.gate = logps, self._constrain(inputs, logps.detach(), measured)
        if not self._verified:
            inputs["advantages"].requires_grad_()
        self._measure(phase, rows)
        return logps, entropies, aux

    # -- training: the method's gradient in TRL's loss ---------------------------------------------

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        self._phase = phase = Training(dict(inputs))
        if "generated" in inputs:
            # Updates since the sampler's weights, of each completion.
            phase.inputs[LAG] = self.state.global_step - inputs["generated"]  # [batch]
        try:
            loss = super()._compute_loss(model, phase.inputs)
        finally:
            self._phase = None
            self._open_clip()  # the bounds were those of this micro-batch
        if phase.gate is None:
            raise RuntimeError(_NOTHING_ACTED)
        self._acted = True
        if not self._verified and self._mode == "train":
            self._verified = verified(self, phase, loss)
        for name, value in clip_ratios(*phase.gate[:2], self._sum, self.accelerator.gather).items():
            # Replaces TRL's values, which describe its own clip.
            self._metrics[self._mode][f"clip_ratio/{name}"][-1] = value
        return loss

    def _open_clip(self) -> None:
        self.epsilon_low: Any = math.inf
        self.epsilon_high: Any = math.inf

    @torch.no_grad()
    def _constrain(
        self, inputs: dict[str, Any], logps: Tensor, measured: dict[str, Any]
    ) -> tuple[TokenBatch, Surrogate, Tensor]:
        """Set advantages and bounds with which TRL's loss has the method's gradient."""
        old = inputs.get("old_per_token_logps")
        batch = self._tokens(inputs, logps, logps if old is None else old, **measured)
        if not self._examined and batch.logp_rollout is not None:
            self._examined = True
            if notice := sampled.oddity(batch):
                warnings.warn(notice, stacklevel=2)
        # Before the gradient, which reads them; those of a generation came with the inputs.
        if self.method.statistics_over and batch.statistics is None:
            batch = batch.having(statistics=self.method.statistics(batch, self._sum))
        pull = None
        if moves_candidates(self.method):
            # c [batch, time] for the sampled tokens, the other [batch, time, k] for the candidates.
            c, of_candidates, surrogate = gradient_with_candidates(self.method, batch)
            pull = candidates.pull(of_candidates, measured["candidates"].logp)
        else:
            c, surrogate = gradient(self.method, batch)  # [batch, time]
        self.epsilon_low, self.epsilon_high = inject(inputs, batch, c, surrogate, pull)
        return batch, surrogate, c

    def _measure(self, phase: Training, rows: Tensor | None) -> None:
        """Add a micro-batch to the metrics; ``rows`` are those scored, None for all."""
        assert phase.gate is not None
        batch, surrogate, c = phase.gate
        scored = batch if rows is None else only_what_matters(batch)
        window = self._windows[self._mode]
        window.add(scored, surrogate, self.method, self._all_metrics, c)
        skipped = 0.0 if rows is None else 1 - len(rows) / len(batch.mask)
        if self.accelerator.num_processes > 1:  # one rank knows it without waiting for a GPU
            skipped = self.accelerator.gather(batch.logp.new_tensor(skipped)).mean().item()
        self._metrics[self._mode]["trustclip/skipped"].append(skipped)
        if self._mode == "train":
            if adapts(self.method):
                # Of all tokens: nothing is skipped then.
                self._update.add(batch, surrogate, kinds=False)
            self._record_loss(phase.inputs, batch, surrogate, c, scored)

    def _finish_update(self) -> None:
        if not self._acted:
            raise RuntimeError(_NOTHING_ACTED)
        if adapts(self.method):
            window, self._update = self._update, diagnostics.Window()
            if metrics := window.read(self._sum):
                self.method = self.method.after(metrics)
        super()._finish_update()

    # -- the batch ---------------------------------------------------------------------------------

    def _tokens(
        self, inputs: dict[str, Any], logps: Tensor, old: Tensor, **measured: Any
    ) -> TokenBatch:
        """Build the `TokenBatch` of one of TRL's input dictionaries."""
        samples = self.args.per_device_train_batch_size * int(self.args.steps_per_generation or 1)
        first = self.state.global_step * samples * self.accelerator.num_processes
        return token_batch(inputs, logps, old, first, **measured)

    # -- training anew, and from checkpoints of Transformers ---------------------------------------

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train as `transformers.Trainer` does, from its own checkpoints too.

        Data and generations begin anew in a second training, and updates are
        counted from 0; weights, optimizer and thresholds go on.
        """
        self._step, self._buffered_inputs, self._last_closed = 0, None, 0
        self._forget_update()
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            checkpoints.save(self, Path(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            checkpoints.restore(self, Path(checkpoint))

    # -- logs and the state between two updates ----------------------------------------------------

    def _examine(self, summary: dict[str, float]) -> None:
        """Warn once when the constraint has done nothing for ``inert_patience`` updates."""
        step = self.state.global_step
        if summary["gated"] > 0 or (
            Trait.CUTS not in self.method.traits and summary["off_policy"] > 0
        ):
            self._last_closed = step
        elif step - self._last_closed >= self.args.inert_patience:
            self._last_closed = sys.maxsize  # warned once
            self._notice(
                "inert_constraint",
                f"the constraint {self.method.name!r} has been inert for "
                f"{self.args.inert_patience} updates: its gate closed on no token (mean k3 "
                f"{summary['k3']:.2e} nats). Its threshold is too wide for this learning rate and "
                "number of updates per generation.",
            )

    def progress(self) -> dict[str, Any]:
        """What the next update depends on beside weights, optimizer and `carried` attributes."""
        return {
            "windows": {mode: window.state_dict() for mode, window in self._windows.items()},
            "method": state(self.method),
            "old_head": self._watch.old_head,
        }

    def restore(self, progress: dict[str, Any]) -> None:
        """Continue from a `progress`."""
        self._forget_update()
        for mode, window in progress["windows"].items():
            self._windows[mode].load_state_dict(window)
        self.method = restored(self.method, progress["method"])
        self._watch.old_head = progress["old_head"]

    def _forget_update(self) -> None:
        self._update = diagnostics.Window()
        super()._forget_update()

    # -- stopping: whoever can stop a run, as `trustclip.train.trainers` can, overrides these ------

    def stopping(self) -> bool:
        """Whether this rank was asked to stop, and may at once end work that no other awaits."""
        return False

    def leave_if_asked(self) -> None:
        """End training here if any rank was asked to; every rank calls it."""

    def _unwrapped(self) -> nn.Module:
        # Kept, since accelerate looks for DeepSpeed on the disk at each call, for a millisecond.
        outer, inner = self._inner
        if outer is not self.model:
            self._inner = outer, inner = self.model, self.accelerator.unwrap_model(self.model)
        return inner
