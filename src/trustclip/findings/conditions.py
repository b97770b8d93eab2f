"""How runs were evaluated: whether the same problems, prompts and sampling stand behind scores."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trustclip.findings.facts import ALIKE, FAMILIES
from trustclip.findings.finding import Finding
from trustclip.findings.groups import Group, by_setting
from trustclip.findings.scores import answers_of
from trustclip.logs.answers import usual
from trustclip.logs.choice import NUMBER
from trustclip.logs.identity import flat
from trustclip.logs.reader import Run
from trustclip.logs.samples import problem_rows
from trustclip.support.names import some

#: These settings determine a prompt, and how completions are drawn.
_PROMPT = ("system", "template", "answer", "thinking", "chat_template")
_SAMPLING = ("temperature", "top_p", "max_tokens")


def unlike(runs: Sequence[Run]) -> Iterator[Finding]:
    """Faults about prompts and sampling that differ between the evaluations of runs.

    What a run has not recorded is not compared.
    """
    for what, names, settings in (
        ("prompts", _PROMPT, {run.path: _prompt(run) for run in runs}),
        ("sampling", _SAMPLING, {run.path: _sampling(run) for run in runs}),
    ):
        (first, reference), *others = settings.items()
        for path, own in others:
            differing = [
                f"{name} {reference[name]!r:.40} and {own[name]!r:.40}"
                for name in names
                if name in reference and name in own and reference[name] != own[name]
            ]
            if differing:
                text = (
                    f"{first} and {path} were evaluated with different {what} "
                    f"({'; '.join(differing)}): their scores may differ for this reason."
                )
                yield Finding(f"comparison/{what}", "fault", text)
                break


def unequal_samples(groups: Sequence[Group]) -> Iterator[Finding]:
    """A warning about methods that were evaluated with different numbers of samples."""
    counts = {}
    for group in groups:
        each = [problems for e in group.evaluations("final") for problems in e.answers.values()]
        if k := min((usual([*problems.values()]) for problems in each), default=0):
            counts[group.label] = k
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{name} {k}" for name, k in counts.items())
        text = (
            f"The methods have different numbers of samples per problem: {each}. Mean@K means the "
            f"same for every K and is compared as it is. Pass@K rises with K, so "
            f"Pass@{min(counts.values())} is estimated from all samples of each and compared."
        )
        yield Finding("comparison/samples", "warning", text)


#: Sign that ends what problems of one template share in their ids.
_SIGN = re.compile(r"[-_/.:#](?=[^-_/.:#]*$)")


def families(runs: Sequence[Run]) -> Iterator[Finding]:
    """A warning where ids or texts look as if templates had made the problems."""
    first = next((run.final for run in runs if run.final and run.final.answers), None)
    if first is None or first.families:
        return
    keys, texts = [*answers_of(first)], _texts(runs[0])
    written: Mapping[tuple[str, str], list[Any]] = {
        ("the last part of their ids", "=SIGN"): [(t, _SIGN.split(name)[0]) for t, name in keys],
        ("the numbers in their ids", " numbers"): [(t, NUMBER.sub("#", name)) for t, name in keys],
        ("the numbers in their texts", " COLUMN"): [
            NUMBER.sub("#", texts[k][0]) for k in keys if k in texts
        ],
    }
    for (what, option), stems in written.items():
        count = len(set(stems))
        if FAMILIES <= count <= ALIKE * len(stems):
            yield Finding(
                "comparison/families",
                "warning",
                f"The {len(stems)} problems look like {count} families: those of one family differ "
                f"only in {what}.",
                "problems of one template are no independent evidence, and intervals are then too "
                f"narrow: compare families with --cluster{option}.",
            )
            return


def unlike_settings(groups: Sequence[Group]) -> Iterator[Finding]:
    """A fault of each group that differs from its reference in more than the method."""
    for here in by_setting(groups).values():
        reference = next((group for group in here if group.is_reference), here[0])
        for group in here:
            if group is not reference and (differences := _differences(group, reference)):
                text = (
                    f"{group.label} and {reference.label} differ in more than the method: "
                    f"{some(differences)}. Their scores may differ for either reason."
                )
                yield Finding("comparison/settings", "fault", text)


def _differences(group: Group, reference: Group) -> list[str]:
    """Settings of training in which a group and its reference differ, each with both values."""
    by_seed = {run.seed: run for run in reference.runs}
    pair = next(((r, by_seed[r.seed]) for r in group.runs if r.seed in by_seed), None)
    ours, theirs = (_training(run) for run in pair or (group.runs[0], reference.runs[0]))
    if not ours or not theirs:
        return []
    return [
        f"{key} {ours.get(key)!r:.40} and {theirs.get(key)!r:.40}"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]


def _training(run: Run) -> dict[str, Any]:
    """Settings that a trained model depends on, by path; empty where nothing was trained."""
    if run.method is None:
        return {}
    settings = flat({k: v for k, v in run.essential.items() if k not in ("seed", "eval")})
    of_method = ("method", "rl.method")
    return {
        path.removeprefix("rl."): value
        for path, value in settings.items()
        if not any(path == name or path.startswith(f"{name}.") for name in of_method)
    }


def require_equal_problems(runs: Sequence[Run]) -> None:
    """Refuse runs that were evaluated on other problems, or on other texts or answers of one id.

    Raises:
      ValueError: naming some of them.
    """
    first, *others = runs
    problems, ours = _problem_ids(first), _texts(first)
    for run in others:
        theirs = _texts(run)
        for what, wrong in (
            ("are in one of them only", problems ^ _problem_ids(run)),
            (
                "have one id and two texts or answers",
                {key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key]},
            ),
        ):
            if wrong:
                examples = some([f"{task}: {problem}" for task, problem in sorted(wrong)])
                raise ValueError(
                    f"{first.path} and {run.path} were evaluated on different problems: "
                    f"{len(wrong)} {what} ({examples})."
                )


def _problem_ids(run: Run) -> set[tuple[str, str]]:
    return set() if run.final is None else {*answers_of(run.final)}


def _prompt(run: Run) -> Mapping[str, Any]:
    prompt = run.summary.get("eval_prompt") or run.summary.get("prompt")
    return prompt if isinstance(prompt, Mapping) else {}


def _sampling(run: Run) -> Mapping[str, Any]:
    """Settings of the evaluation: of the section of a recipe, or of the command."""
    section = run.config.get("eval") if run.command in ("run", "demo") else None
    if run.command == "eval":
        section = run.config
    return section if isinstance(section, Mapping) else {}


def _texts(run: Run) -> dict[Any, tuple[str, str]]:
    """Text and answer of each test problem by task and id, where the run has recorded them."""
    return {
        at: (str(row.get("problem", "")), str(row.get("answer", "")))
        for at, row in problem_rows(run.path)
        if at[0] is not None
    }
