"""A TRL trainer that can be killed at any moment and continues as if it had not been.

`Durable` goes before a trainer of TRL in the list of bases. It replaces the checkpoints of
Transformers, which hold pickles, can be torn by a kill and leave out what TRL keeps between
updates: the samples being trained on, the place in them, metrics not yet logged. Ours are written
whole or not at all (`trustclip.train.durable.store`) and hold everything that the next update
depends on, so that training continues bit for bit on the same hardware and releases.

Relied on in Transformers: `_save_checkpoint`, `_load_from_checkpoint`,
`_load_optimizer_and_scheduler`, `_load_scaler`, `_load_rng_state` and ``trainer_state.json`` are
the only doors to a checkpoint, in this order, and `on_epoch_begin` comes between the last two.

In one file because these doors, the signals and the states they save are one protocol: each is
understood only from the order of the others.
"""

import contextlib
import dataclasses
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer_callback import ExportableState

from trustclip.support.names import TrainingError
from trustclip.support.schemas import Number, alike, conform, read_json
from trustclip.support.stops import on_request, say_at_once
from trustclip.train.durable import layouts, schemas, states, weights
from trustclip.train.durable.exactness import check_identity, check_settings, identity
from trustclip.train.durable.ranks import Interrupted, Ranks, leave_if_lost, roll_call
from trustclip.train.durable.rollback import Mark
from trustclip.train.durable.saving import Content, Saver
from trustclip.train.durable.store import CheckpointError, CheckpointStore, NonFiniteError

_STATE = "trainer_state.json"


class Journal(Protocol):
    """Append-only files of a run, cut back when it continues from a checkpoint.

    Where `cursor` takes time, a ``mark()`` returns at once what `rewind` takes as well: it is
    called after every update.
    """

    def cursor(self) -> dict[str, Any]:
        """Extent of every file, in plain values, after its content has been written to the disk."""
        ...

    def rewind(self, cursor: dict[str, Any]) -> None:
        """Cut the files back to these extents; files not listed are younger than the checkpoint."""
        ...


class Durable(Trainer):
    """Mixin for TRL trainers: continues exactly from checkpoints in its ``output_dir``.

    ``save_steps`` and ``save_total_limit`` mean what they mean in `TrainingArguments`. Samples of
    vLLM come from random numbers of its own, which are not stored: with it, training continues
    from the right state but not bit for bit.
    """

    #: Attributes that carry over to the next update and Transformers does not store, with types.
    _carried: ClassVar[dict[str, Any]] = {"_total_train_tokens": Number}
    #: Types of what `_progress` holds beside them.
    _in_progress: ClassVar[dict[str, Any]] = {"metrics": schemas.Metrics, "rewards": list[Any]}
    #: Arguments that give the stored data position and samples their meaning.
    _shape: ClassVar[tuple[str, ...]] = (
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "seed",
    )

    #: Files of the run to cut back with it; set it before training.
    journal: Journal | None = None
    #: Write checkpoints while training goes on; they cost a copy of the state in CPU memory.
    save_async: bool = False
    #: True after a signal has ended `train_durably`, with everything saved.
    stopped_early: bool = False
    #: What is under way and is abandoned by a stop, which returns to the state before it.
    unfinished: str = "update"

    accelerator: Any
    model: Any
    optimizer: Any
    lr_scheduler: Any
    _metrics: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._store = CheckpointStore(Path(str(self.args.output_dir)), self.args.save_total_limit)
        accelerator = self.accelerator
        self._ranks = Ranks(accelerator.process_index, accelerator.num_processes)
        self._saver = Saver(self._store, self._ranks)
        self._identity: dict[str, Any] = {}  # of this training, taken before its model is wrapped
        self.save_async = getattr(self.args, "save_async", self.save_async)
        self._saved_step: int | None = None  # step whose checkpoint is known to be good
        self._rest: dict[str, Any] = {}  # of a checkpoint, to restore when training has begun
        self._listening = self._terminated = False
        self._mark: Mark | None = None  # the state after the last update
        self._seeded = states.random_state()  # nothing computed before training changes its samples
        self.add_callback(_Watch(self))

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train from the start, as Transformers does; use `train_durably` to continue."""
        if resume_from_checkpoint:
            raise ValueError("continue with train_durably(): it finds the checkpoint itself.")
        if self.args.save_strategy != "no":
            check_settings(self)
            if self._store.steps():
                raise ValueError(
                    f"{self._store.folder} already has checkpoints of a training: call "
                    "train_durably() to continue it, or choose another output_dir."
                )
            self._ranks.together(lambda: self._store.origin(self._cursor))
            self._prepare_saving()
        self._rest = {}
        with roll_call(self.args.ddp_timeout), self._settling():
            return super().train(None, *args, **kwargs)

    def train_durably(self) -> bool:
        """Train from the newest valid checkpoint of ``output_dir``, or from the start.

        SIGTERM or Ctrl-C saves the last whole update, whatever ``save_steps``, and ends training:
        in a generation at the next token (of vLLM or a rollout_func, at its end), in an update
        after the micro-batch. The unfinished part is repeated identically on resume. Only the main
        thread can listen for them.

        Returns:
          True when training is complete, False when a signal ended it.

        Raises:
          CheckpointError: a checkpoint cannot be written, or none of those there can be used.
          LostRankError: a rank is lost, or has let the others wait for ``ddp_timeout`` seconds.
          NonFiniteError: a weight or an optimizer state is NaN or infinite; the newest checkpoint
            is of an update before that.
          ValueError: they are of other settings or another model, or the settings do not allow
            training to continue exactly.
        """
        check_settings(self)
        self.stopped_early = self._terminated = False
        self._rest, self._mark = {}, None
        self._listening = True
        try:
            with on_request(self._ask_to_stop), roll_call(self.args.ddp_timeout), self._settling():
                self._prepare_saving()
                newest = self._ranks.together(self._newest)
                if newest is not None:
                    self._ranks.together(lambda: check_identity(self._identity, newest))
                    self._ranks.everyone(lambda: self._read(newest))  # before rows are cut
                self._ranks.together(lambda: self._rewind(newest))
                if newest is None:
                    states.set_random_state(self._seeded)
                elif self._complete(newest):
                    return True
                with self._explain_nonfinite(), self._return_when_interrupted():
                    super().train(resume_from_checkpoint=None if newest is None else str(newest))
                    self._ranks.everyone(self._check_finite)
                if not self.stopped_early and self.asked_to_stop():
                    self._save_checkpoint(self.model, None)
                    self.stopped_early = True
        finally:
            self._listening = False
        return not self.stopped_early

    # -- starting ----------------------------------------------------------------------------------

    def _prepare_saving(self) -> None:
        self._identity = identity(self)
        self._saver = Saver(
            self._store, self._ranks, background=self.save_async, timeout=self.args.ddp_timeout
        )

    @contextlib.contextmanager
    def _settling(self) -> Iterator[None]:
        """Wait at the end for a checkpoint that is being written."""
        try:
            yield
        except BaseException:
            self._saver.settle(patient=False)
            raise
        self._saver.settle()

    def _newest(self) -> Path | None:
        self._store.clean()
        newest = self._store.newest()
        self._store.origin(self._cursor)
        return newest

    def _cursor(self) -> dict[str, Any]:
        return {} if self.journal is None else self.journal.cursor()

    def _rewind(self, newest: Path | None) -> None:
        if self.journal is not None:
            if newest is None:  # killed before the first checkpoint, or starting
                cursor = self._store.origin(self._cursor)
            else:
                cursor = {**states.shared(newest)["cursor"]}
            self.journal.rewind(cursor)

    def _complete(self, newest: Path) -> bool:
        """Restore the result of a completed training; False if training is not complete."""
        state = TrainerState.load_from_json(str(newest / _STATE))
        last = self.args.max_steps
        if last <= 0:
            *_, last = self.set_initial_training_values(self.args, self.get_train_dataloader())
        if state.global_step < last:
            return False
        layouts.load_weights(self, newest)
        self.state = state
        self._restore_callbacks(newest)  # what guards have reported belongs to the summary
        return True

    # -- writing -----------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step = self.state.global_step
        if step == self._saved_step:
            return
        self.store_flos()  # before the state is collected, which includes them
        self._ranks.everyone(self._check_finite)  # before a folder is begun: no checkpoint of NaN
        self._saver.save(step, self._collect)
        self._saved_step = step

    def _collect(self, folder: Path) -> Content:
        """This rank's part of the state after an update."""
        content, first = Content(), self.accelerator.is_main_process
        of_optimizer = layouts.put(self, content)  # collective: every rank, so before the return
        content.state(f"rank-{self.accelerator.process_index}", self._own_state())
        if not first:
            return content
        weights.save_config(self._unwrapped(), folder)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)
        content.state("shared", {"identity": self._identity, "cursor": self._cursor()})
        scaler = self.accelerator.scaler
        common = {
            "parameters": self._optimized(),
            "scheduler": self.lr_scheduler.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }
        content.state("optimizer", common | of_optimizer)
        exported: dict[str, list[Any]] = {}
        for callback in self._exportable():
            exported.setdefault(type(callback).__name__, []).append(callback.state())
        state = dataclasses.asdict(self.state) | {"stateful_callbacks": exported}
        content.texts[_STATE] = json.dumps(state)
        return content

    def _own_state(self) -> dict[str, Any]:
        return {
            "random": states.random_state(),
            "loop": {
                "loss": self._tr_loss,
                "logged": self._globalstep_last_logged,
                "order": getattr(self._sampler(), "initial_seed", None),
            },
            "progress": self._progress(),
        }

    def _check_finite(self) -> None:
        name = weights.nonfinite(self._unwrapped(), self.optimizer)
        if name is None:
            return
        next_time = "continues from it" if self._store.steps() else "starts from the beginning"
        raise NonFiniteError(
            f"{name} is not finite (NaN or infinite) after update {self.state.global_step}, which "
            f"is not saved; {self._store.left()}, and the same command {next_time}. If it fails "
            "again, lower learning_rate, or check the reward and the last rows of the metrics."
        )

    @contextlib.contextmanager
    def _explain_nonfinite(self) -> Iterator[None]:
        """Raise errors caused by non-finite weights as a `NonFiniteError`."""
        try:
            yield
        except NonFiniteError:
            raise
        except Exception as error:
            try:
                self._check_finite()
            except NonFiniteError as cause:
                raise cause from error
            except Exception:  # a failed device cannot be read
                raise error from None
            raise

    def _progress(self) -> dict[str, Any]:
        """The state that this rank carries from one update to the next."""
        return {
            "carried": {name: getattr(self, name) for name in self._carried},
            "metrics": {mode: dict(values) for mode, values in self._metrics.items()},
            "rewards": [reward.state_dict() for reward in self._stateful_rewards()],
        }

    # -- reading -----------------------------------------------------------------------------------

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with _loading_errors(resume_from_checkpoint):
            layouts.load_weights(self, Path(resume_from_checkpoint))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            with _loading_errors(checkpoint):
                self._load_states(Path(checkpoint))

    def _load_states(self, folder: Path) -> None:
        stored = states.load(folder, "optimizer")
        if stored["parameters"] != self._optimized():
            raise ValueError(f"{folder} cannot be continued: other parameters were being trained.")
        layouts.load_optimizer(self, folder, stored)  # with its learning rates
        self.lr_scheduler.load_state_dict(
            _restrict(stored["scheduler"], self.lr_scheduler.state_dict(), f"{folder}: scheduler")
        )
        if TrainerState.load_from_json(str(folder / _STATE)).max_steps != self.args.max_steps:
            self._reschedule()  # after both: it replaces the rates that they have restored
        if stored["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(stored["scaler"])
        self._restore(self._rest.pop("progress"))
        self._restore_callbacks(folder)
        self._saved_step = self.state.global_step
        if getattr(self.args, "use_vllm", False):
            warnings.warn("vLLM's random numbers are not restored: samples differ.", stacklevel=2)

    def _restore_callbacks(self, folder: Path) -> None:
        exported = {name: [*values] for name, values in self.state.stateful_callbacks.items()}  # type: ignore[union-attr]
        for callback in self._exportable():
            if values := exported.get(type(callback).__name__):
                own = callback.state()["attributes"]
                where = f"{folder}/{_STATE}: {type(callback).__name__}"
                vars(callback).update(_restrict(values.pop(0)["attributes"], own, where))

    def _reschedule(self) -> None:
        """Set the next update's learning rate by a schedule of another length than the stored."""
        scheduler = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
        if not hasattr(scheduler, "lr_lambdas"):
            return
        shapes = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        rates = [base * shape(scheduler.last_epoch) for base, shape in shapes]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        scheduler._last_lr = rates  # what is logged

    def _read(self, folder: Path) -> None:
        """Read what this rank continues from, and refuse content that no trainer writes."""
        state = read_json(folder / _STATE)
        conform(state, schemas.STATE, f"{folder}/{_STATE}")
        names = {field.name for field in dataclasses.fields(TrainerState)}
        for name in sorted(state.keys() - names):
            raise ValueError(f"{folder}/{_STATE}: {name!r} is none of the names in it.")
        rank = self._ranks.rank
        self._rest = states.load(folder, f"rank-{rank}", self.accelerator.device)
        kind = schemas.rank_of(self._in_progress, self._carried)
        conform(self._rest, kind, f"{folder}/rank-{rank}.json")

    def _restore(self, progress: dict[str, Any]) -> None:
        vars(self).update(progress["carried"])
        for mode, values in progress["metrics"].items():
            self._metrics[mode].clear()
            self._metrics[mode].update(values)
        for reward, state in zip(self._stateful_rewards(), progress["rewards"], strict=True):
            reward.load_state_dict(state)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Do nothing: the scaler is loaded with the optimizer."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if "random" in self._rest:
            with _loading_errors(checkpoint):
                states.set_random_state(self._rest.pop("random"))

    def _enter_epoch(self, epoch: int) -> None:
        """Restore, once, what Transformers resets as training begins, and the order of the data."""
        loop = self._rest.pop("loop", None)
        if loop is None:
            return
        self._tr_loss = loop["loss"].to(self._tr_loss)  # on that one's device
        self._globalstep_last_logged = loop["logged"]
        sampler = self._sampler()
        if loop["order"] is not None:
            sampler.initial_seed = loop["order"]
        for _ in range(epoch):
            # TRL's sampler draws the order of every epoch from its own generator.
            next(iter(sampler), None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)

    # -- parts -------------------------------------------------------------------------------------

    def _unwrapped(self) -> nn.Module:
        return self.accelerator.unwrap_model(self.model)

    def _sampler(self) -> Any:
        """The sampler that orders the training data, inside its batch samplers."""
        batches: Any = getattr(self.callback_handler.train_dataloader, "batch_sampler", None)
        while hasattr(batches, "batch_sampler"):
            batches = batches.batch_sampler
        return getattr(batches, "sampler", None)

    def _optimized(self) -> list[list[str]]:
        """Parameter names in the order of the optimizer's groups, which store numbers only."""
        names = {id(p): name for name, p in self._unwrapped().named_parameters()}
        return [[names[id(p)] for p in group["params"]] for group in self.optimizer.param_groups]

    def _exportable(self) -> list[Any]:
        return [c for c in self.callback_handler.callbacks if isinstance(c, ExportableState)]

    def _stateful_rewards(self) -> list[Any]:
        functions = getattr(self, "reward_funcs", [])
        return [f for f in functions if hasattr(f, "state_dict") and not isinstance(f, nn.Module)]

    # -- stopping ----------------------------------------------------------------------------------

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """A micro-batch, unless the run is to stop."""
        self.leave_if_asked()
        return super().training_step(*args, **kwargs)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        super()._maybe_log_save_evaluate(*args, **kwargs)
        if self._mark is not None and self._mark.step != self.state.global_step:
            self._mark = Mark.of(self)

    def _ask_to_stop(self) -> None:
        leave_if_lost()
        self._terminated = True
        if self.accelerator.is_main_process:
            last = "of the last whole update"
            state = last if self.unfinished == "update" else f"before this {self.unfinished}"
            say_at_once(f"stopping: saving the state {state}; a second signal stops at once.")

    def asked_to_stop(self) -> bool:
        """True on every rank once any of them has received SIGTERM or Ctrl-C."""
        if not self._listening or self.accelerator.num_processes == 1:
            return self._listening and self._terminated
        flag = torch.tensor(float(self._terminated), device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag, reduction="sum") > 0)

    @property
    def _has_mark(self) -> bool:
        """Whether the state of the last update is marked: not before it is logged and saved."""
        return self._mark is not None and self._mark.step == self.state.global_step

    def stopping(self) -> bool:
        """Whether this rank was asked to stop, and may at once end work that no other awaits."""
        return self._terminated and self._has_mark

    def leave_if_asked(self) -> None:
        """End training here, by `Interrupted`, if any rank was asked to; every rank calls it."""
        if self._has_mark and self.asked_to_stop():
            raise Interrupted

    @contextlib.contextmanager
    def _return_when_interrupted(self) -> Iterator[None]:
        """When training is interrupted, return to the last update, and save it if not yet saved."""
        try:
            yield
        except Interrupted:
            mark = self._mark
            assert mark is not None
            saved = mark.step in (0, self._saved_step)
            # Before saving: the checkpoint is of the state after the last whole update.
            self._ranks.everyone(lambda: mark.restore(self, rows=not saved))
            if not saved:
                self._save_checkpoint(self.model, None)
            self.stopped_early = True
        finally:
            self._mark = None


def _restrict(stored: dict[str, Any], own: dict[str, Any], where: str) -> dict[str, Any]:
    """A stored state, restricted to attributes that its object has: others cannot be set."""
    alike(stored, own, where)
    return {name: value for name, value in stored.items() if name in own}


@contextlib.contextmanager
def _loading_errors(folder: str | None) -> Iterator[None]:
    """Raise errors of loading a malformed state as a `CheckpointError` that names the folder."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, RuntimeError) as error:
        lost = isinstance(error, RuntimeError) and torch.distributed.is_initialized()
        if lost or isinstance(error, torch.OutOfMemoryError | TrainingError):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise CheckpointError(
            f"{folder} cannot be continued: its state does not fit this training ({reason})."
        ) from error


class _Watch(TrainerCallback):
    """Callbacks of `Durable` in the training loop."""

    def __init__(self, trainer: Durable) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._trainer._listening:
            self._trainer._mark = Mark.of(self._trainer)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer._enter_epoch(int(state.epoch or 0))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._trainer.asked_to_stop():
            control.should_save = control.should_training_stop = True
            self._trainer.stopped_early = True
