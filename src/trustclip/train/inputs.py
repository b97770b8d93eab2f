"""What the settings of a run name, by its content: a stopped run continues on the same inputs only.

A setting may stay the same while what it names changes: rows of a data set, the code of a reward,
the chat template in a model's folder, a package. All of it is hashed when a run starts, stored in
``inputs.json`` (versions of packages: in ``environment.json``), and compared when it continues.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from trustclip.logs.identity import Marks, essential
from trustclip.logs.writing.environment import PACKAGES, versions
from trustclip.logs.writing.run import INPUTS, UNBEGUN, RunWriter
from trustclip.support.consent import names_in
from trustclip.support.jsonl import plain, read_mapping, write_json
from trustclip.support.schemas import conform, mapping
from trustclip.support.text import join_words
from trustclip.train.models import stored_tokenizer
from trustclip.train.problems.problem import Problem
from trustclip.train.runs.directory import read_inputs
from trustclip.train.settings.stages import Place
from trustclip.train.tiny import BUILT_IN

_ENVIRONMENT = mapping("Environment", {"versions": dict[str, str]}, total=False, more=True)


def compare(run: RunWriter, settings: Place, problems: Mapping[str, Sequence[Problem]]) -> None:
    """Store the inputs of a run that starts; compare those of one that continues.

    The first rank calls it, before a model loads. The problems are given by the name of the setting
    that names their data set. What has changed is recorded where ``changed_inputs`` allows it.

    Raises:
      ValueError: inputs have changed since the run began.
    """
    file, described = run.path / INPUTS, run.path / "environment.json"
    stored, environment = read_inputs(run.path), read_mapping(described)
    conform(environment, _ENVIRONMENT, str(described))
    before, now = stored.get("inputs", {}), dict(_inputs(settings, problems))
    changed = [
        *(name for name in now if before.get(name, now[name]) != now[name]),
        *_other_versions(environment.get("versions", {})),
    ]
    begun = not {entry.name for entry in run.path.iterdir()} <= UNBEGUN
    if begun and changed and not settings.changed_inputs:
        raise ValueError(
            f"{run.path} cannot continue as it began, because this has changed: "
            f"{join_words(changed)}. Restore it, or go on with what there is now: trustclip resume "
            f"{run.path} --changed-inputs. The run records that."
        )
    if changed:
        write_json(described, {**environment, "versions": versions()})
    changes = [*stored.get("changes", []), *([changed] if begun and changed else [])]
    write_json(file, {"inputs": now, "changes": changes})


def _other_versions(stored: Mapping[str, str]) -> Iterator[str]:
    """Packages with another version; one that is or was missing is used by no setting."""
    for name, now in versions().items():
        before = stored.get(name, now)
        if name in PACKAGES and before != now and "not installed" not in (before, now):
            yield f"{name} ({before}, now {now})"


def _inputs(
    settings: Place, problems: Mapping[str, Sequence[Problem]]
) -> Iterator[tuple[str, str]]:
    """Each input that the settings name, in words, and the hash of its content."""
    for setting, rows in problems.items():
        texts = [json.dumps(vars(row), sort_keys=True, default=str) for row in rows]
        yield f"the rows of {setting}", _hash(sorted(texts))
        yield f"the order of the rows of {setting}", _hash(row.id for row in rows)
    config = plain(settings)
    for name in sorted(names_in(essential(config, Marks.of(type(settings), config)))):
        if (source := _source(name)) is not None:
            yield f"the code of {name}", _hash([source.read_text(encoding="utf-8")])
    if settings.model in BUILT_IN or getattr(settings, "backend", "") == "openai":
        return
    tokenizer = stored_tokenizer(settings.model)
    yield "the chat template", _hash([json.dumps(tokenizer.chat_template)])
    fast = getattr(tokenizer, "backend_tokenizer", None)
    words = sorted(tokenizer.get_vocab().items())
    yield "the tokenizer", _hash([json.dumps(words) if fast is None else fast.to_str()])


def _source(name: str) -> Path | None:
    """The file of an object that a setting names; None of one that no Python file defines."""
    where, _, _ = name.rpartition(":")
    path = Path(where if where.endswith(".py") else getattr(sys.modules.get(where), "__file__", ""))
    return path if path.is_file() else None


def _hash(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()
