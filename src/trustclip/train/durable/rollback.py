"""The state after an update, to which training returns when it is stopped inside the next one."""

import copy
from dataclasses import dataclass
from typing import Any

from torch.utils._pytree import tree_map

from trustclip.train.durable import states


@dataclass(frozen=True)
class Mark:
    """All that the next update changes before its optimizer step: so neither weights nor optimizer.

    Tensors are not copied, except the sum of the losses: a trainer replaces its tensors from
    update to update and never changes the others in place.
    """

    step: int
    #: `Durable._own_state` of this rank, or the error that prevented it, which `restore` raises.
    own: dict[str, Any] | Exception
    state: dict[str, Any]  # attributes of the `TrainerState`
    flos: float
    callbacks: list[Any]  # their states, in the order of `Durable._exportable`
    rows: Any  # the journal's `mark`; None on ranks that do not write it

    @classmethod
    def of(cls, trainer: Any) -> "Mark":
        """The state of a trainer, between two updates; every rank calls it."""
        own, rows, journal = _own_state(trainer), None, trainer.journal
        if trainer.accelerator.num_processes > 1:
            trainer.accelerator.wait_for_everyone()  # others may still write rows of the update
        if journal is not None and trainer.accelerator.is_main_process:
            rows = getattr(journal, "mark", journal.cursor)()
        return cls(
            trainer.state.global_step,
            own,
            # Copies of lists, not of their items: log lines are appended, never changed.
            {n: list(v) if type(v) is list else v for n, v in vars(trainer.state).items()},
            trainer.current_flos,
            [copy.deepcopy(callback.state()["attributes"]) for callback in trainer._exportable()],
            rows,
        )

    def restore(self, trainer: Any, *, rows: bool) -> None:
        if isinstance(self.own, Exception):
            raise self.own
        states.set_random_state(self.own["random"])
        trainer._tr_loss = self.own["loop"]["loss"]
        trainer._globalstep_last_logged = self.own["loop"]["logged"]
        trainer._restore(self.own["progress"])
        vars(trainer.state).update(self.state)
        trainer.current_flos = self.flos
        for callback, attributes in zip(trainer._exportable(), self.callbacks, strict=True):
            vars(callback).update(attributes)
        if rows and self.rows is not None:
            trainer.journal.rewind(self.rows)


def _own_state(trainer: Any) -> dict[str, Any] | Exception:
    try:
        # Containers are copied, not their values: later changes leave it alone.
        own = tree_map(lambda value: value, trainer._own_state())
    except Exception as error:  # a reward's state on this rank: raised here, others would wait
        return error
    own["loop"]["loss"] = own["loop"]["loss"].clone()
    return own
