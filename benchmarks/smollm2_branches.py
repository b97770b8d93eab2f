r"""Part B of docs/smollm2-plan.md: one generation under each arm, from the same state and data.

    python benchmarks/smollm2_branches.py runs/branches

It makes the runs of `atr` at the lower rate anew, with a checkpoint before every generation; then,
from each of the chosen ones, continues a copy of the run for one generation under each arm. What
was sampled before the first update is the same in all of them. It adds a row for each branch to
benchmarks/smollm2/branches.parquet, and deletes the copies; a state that is there is not made again
(with ``--to FOLDER`` all are). Finished parts are not made again.

Theorem 5.2 is tested on the tokens that the gates of `atr` and of its mirror image $m$ treat
differently: kept by `atr` alone ($\sigma=1$, $A>0$) or by $m$ alone ($\sigma=-1$, $A<0$). Such a
token $a$ of weight $w$, in a state with entropy $H$ and policy $\pi$, is predicted to change the
entropy of `atr` less that of $m$ by

- as stated: $-\sigma w A\,(\log\pi(a)+H)$, the step of the natural gradient;
- with $\pi$, as its derivation has it: $-\sigma w A\,[\pi(a)(\log\pi(a)+H)
  - \sum_b\pi(b)^2(\log\pi(b)+H)]$, the step $wA\,\nabla_z\log\pi(a)$ of the logits $z$;

both up to one positive constant, the step size, and to first order.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
import yaml
from numpy.typing import NDArray
from smollm2 import FOLDER, KEY, added, generations_of, key_of
from smollm2_report import ARMS
from torch import Tensor

from trustclip.constraints.registry import as_method
from trustclip.logs.reader import find, read_run
from trustclip.logs.run import Run
from trustclip.logs.tokens import TOKENS, TokenRow, read_tokens
from trustclip.support.jsonl import plain
from trustclip.train.files import Source, build, of_run
from trustclip.train.models import load_model
from trustclip.train.problems.generated import GENERATED
from trustclip.train.problems.prompts import PromptStyle, completion, rendered

ROOT = Path(__file__).parents[1]
SUITE = ROOT / "recipes/suites/trust-regions.yaml"
#: Generations that a branch trains on.
GENERATIONS = (4, 10, 16)
SEEDS = 8
#: Columns that say which branch a row is of.
BRANCH = (*KEY, "generation")
#: States of answers to held-out problems, and problems with worked solutions.
CONTEXTS, SOLUTIONS = 512, 64


@dataclass(frozen=True)
class Texts:
    """Token sequences on which policies are compared.

    Args:
      answers: prompts with an answer each: ids, and the length of the prompt.
      solutions: prompts with their worked solutions.
    """

    answers: list[tuple[Tensor, int]]
    solutions: list[tuple[Tensor, int]]


# -- runs ------------------------------------------------------------------------------------------


def trunks(suite: Path, folder: Path, seeds: int) -> list[Run]:
    """The runs of `atr` at the lower rate, made anew with a checkpoint before every generation."""
    plan = yaml.safe_load(suite.read_text(encoding="utf-8"))
    plan["recipe"] = str((suite.parent / plan["recipe"]).resolve())
    plan["name"], plan["output_dir"] = "trunks", str(folder / "trunks")
    plan["methods"], plan["reference"] = {"atr": plan["methods"]["atr"]}, "atr"
    plan["seeds"] = plan["seeds"][:seeds]
    plan["sweep"]["rl.learning_rate"] = [min(plan["sweep"]["rl.learning_rate"])]
    plan["changes"] |= {"rl.save_steps": updates_of(plan), "rl.save_total_limit": None}
    folder.mkdir(parents=True, exist_ok=True)
    own = folder / "trunks.yaml"
    own.write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
    trustclip("suite", own)
    return [read_run(path) for path in find([folder / "trunks"])]


def updates_of(plan: Mapping[str, Any]) -> int:
    """Updates of a generation, in a suite's recipe with its changes."""
    rl = yaml.safe_load(Path(plan["recipe"]).read_text(encoding="utf-8"))["rl"]
    changed = {
        key.removeprefix("rl."): value
        for key, value in plan["changes"].items()
        if key.startswith("rl.")
    }
    rl |= changed
    return int(rl["steps_per_generation"] * rl["num_iterations"])


def branched(trunk: Run, folder: Path, generation: int, arm: str, method: Mapping[str, Any]) -> Run:
    """A copy of a run, continued for one generation; for the arm ``"state"`` for none.

    Args:
      trunk: with a checkpoint before the generation.
      folder: of all branches.
      generation: the first is 1.
      arm: name of the constraint.
      method: its settings.
    """
    seed, rl = trunk.config["seed"], trunk.config["rl"]
    path = folder / f"seed{seed}-generation{generation}-{arm}"
    updates = rl["steps_per_generation"] * rl["num_iterations"]
    start = (generation - 1) * updates
    if not (path / "config.yaml").exists():
        part = path.with_name(f".{path.name}")
        shutil.rmtree(part, ignore_errors=True)
        others = [p.name for p in (trunk.path / "checkpoints").glob("step-*")
                  if p.name != f"step-{start:06d}"]  # fmt: skip
        ignored = shutil.ignore_patterns("final", "summary.json", "lock", *others)
        shutil.copytree(trunk.path, part, ignore=ignored)
        config = yaml.safe_load((part / "config.yaml").read_text(encoding="utf-8"))
        config["output_dir"] = str(path)
        config["rl"] |= {"max_steps": start + updates * (arm != "state"), "tokens_every": 1,
                         "method": plain(as_method(method))}  # fmt: skip
        config["eval"]["limit"] = 1
        (part / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        part.rename(path)
    if not read_run(path).summary.get("finished"):
        # fewer problems are evaluated than by the run that it branches from
        trustclip("resume", path, "--changed-inputs")
    return read_run(path)


def trustclip(command: str, path: Path, *options: str) -> None:
    """Run a command of trustclip."""
    subprocess.run([sys.executable, "-m", "trustclip", command, str(path), *options], check=True)


def alike(trunk: Run, table: Path) -> int:
    """Generations in which a run has the right answers and the lengths of the committed one.

    Two kinds of processors round differently, so their runs part at some token or update. The
    first generation is sampled before any update: there the right answers must agree.

    Raises:
      ValueError: they do not, or the table lacks the run.
    """
    ours, key = list(generations_of(trunk)), key_of(trunk)
    theirs = [
        row for row in pq.read_table(table).to_pylist() if all(row[n] == v for n, v in key.items())
    ]
    if not theirs or ours[0]["right"] != theirs[0]["right"]:
        raise ValueError(f"{trunk.path} does not begin as the run {key} of {table}.")
    names = ("right", "length")
    return sum(all(x[n] == y[n] for n in names) for x, y in zip(ours, theirs, strict=False))


# -- policies --------------------------------------------------------------------------------------


def texts_of(trunk: Run, tokenizer: Any, style: PromptStyle) -> Texts:
    """Answers to held-out problems before the training, in order, and worked solutions."""
    named = {row["id"]: row["problem"] for row in rows_of(trunk.path / "problems.jsonl")}
    answers = [
        encoded(named[row["id"]], row["response"], tokenizer, style)
        for row in rows_of(trunk.path / "samples.jsonl")
        if row["stage"] == "eval" and row["step"] == 0
    ]
    kept, count = [], 0
    for ids, start in answers:
        if count < CONTEXTS:
            kept.append((ids[:, : start + CONTEXTS - count], start))
            count += kept[-1][0].shape[1] - start
    tasks = trunk.config["eval"]["tasks"]
    solved = GENERATED[tasks if isinstance(tasks, str) else tasks[0]]().test(SOLUTIONS)
    return Texts(kept, [encoded(p.problem, completion(p, style), tokenizer, style) for p in solved])


def encoded(problem: str, text: str, tokenizer: Any, style: PromptStyle) -> tuple[Tensor, int]:
    """A prompt and a completion, shape [1, time], and the length of the prompt."""
    before = tokenizer(rendered(tokenizer, problem, style), add_special_tokens=False).input_ids
    after = tokenizer(text, add_special_tokens=False).input_ids
    return torch.tensor([[*before, *after]]), len(before)


@torch.no_grad()
def logps(model: Any, text: tuple[Tensor, int]) -> Tensor:
    """Log-probabilities of every token at the places of a completion. [completion, vocabulary]"""
    ids, start = text
    return model(ids).logits[0, start - 1 : -1].double().log_softmax(-1)


def compared(model: Any, before: Sequence[Tensor], texts: Texts) -> dict[str, float]:
    """How a policy differs from an earlier one: entropy, both divergences, worked solutions.

    Args:
      model: the later one.
      before: log-probabilities of the earlier one on the answers.
      texts: on which.
    """
    p = torch.cat(list(before))  # [contexts, vocabulary]
    q = torch.cat([logps(model, text) for text in texts.answers])
    solved = [logps(model, text).gather(1, text[0][0, text[1] :, None]) for text in texts.solutions]
    return {
        "entropy": -(q.exp() * q).sum(-1).mean().item(),
        "kl_old_new": (p.exp() * (p - q)).sum(-1).mean().item(),
        "kl_new_old": (q.exp() * (q - p)).sum(-1).mean().item(),
        "solutions": torch.cat(solved).mean().item(),
    }


def predicted(
    state: Any,
    pair: Sequence[Any],
    branch: Run,
    tokenizer: Any,
    style: PromptStyle,
    bounds: Mapping[str, Any],
) -> dict[str, float]:
    """Theorem 5.2's entropy of `atr` less that of its mirror image, over the step size.

    Beside it what came of it at the tokens' own places: the mean difference of the two entropies,
    and for how many of the tokens it has the sign that each form predicts.

    Args:
      state: the policy before the generation.
      pair: the policies of `atr` and of its mirror image after it.
      branch: that of `atr`, with its tokens.
      tokenizer: of the policy.
      style: of the prompts.
      bounds: distances of the mirror image's bounds from ratio 1.
    """
    sampled = {
        (row["step"], row["index"]): row
        for row in rows_of(branch.path / "samples.jsonl")
        if row["stage"] == "rl"
    }
    named = {row["id"]: row["problem"] for row in rows_of(branch.path / "problems.jsonl")}
    # of a token, over its updates: as stated, with pi, and the difference of the entropies
    tokens: dict[tuple[int, int], NDArray[np.float64]] = defaultdict(lambda: np.zeros(3))
    only = {"only_atr": 0, "only_mirror": 0}
    start = max(step for step, _ in sampled)
    for row in read_tokens(branch.path / TOKENS):
        if row.generated != start or not row.advantage.any():
            continue
        assert row.kept is not None and row.logp_old is not None
        assert row.token_id is not None and row.index is not None
        differs = np.flatnonzero(row.mask & (row.kept != mirrored(row, bounds)))
        if not len(differs):
            continue
        problem = named[sampled[row.generated, row.index]["id"]]
        prompt = tokenizer(rendered(tokenizer, problem, style), add_special_tokens=False).input_ids
        text = torch.tensor([[*prompt, *row.token_id.tolist()]]), len(prompt)
        logp = logps(state, text)  # [completion, vocabulary]
        ours, theirs = (-(q.exp() * q).sum(-1) for q in (logps(one, text) for one in pair))
        for t in differs.tolist():
            sign = 1 if row.kept[t] else -1
            weighted = sign * np.exp(row.logp[t] - row.logp_old[t]) * row.advantage[t]
            p, own = logp[t].exp(), int(row.token_id[t])
            centred = logp[t] - (p * logp[t]).sum()
            slope = p[own] * centred[own] - (p * p * centred).sum()
            of_token = tokens[row.index, t]
            of_token[:2] -= weighted * centred[own].item(), weighted * slope.item()
            of_token[2] = (ours[t] - theirs[t]).item()
            only["only_atr" if sign > 0 else "only_mirror"] += 1
    stated, corrected, gap = np.array([*tokens.values()]).reshape(-1, 3).T
    return {
        "stated": stated.sum(),
        "corrected": corrected.sum(),
        **only,
        "tokens": len(gap),
        "own": gap.mean() if len(gap) else 0.0,
        "stated_right": int((stated * gap > 0).sum()),
        "corrected_right": int((corrected * gap > 0).sum()),
    }


def mirrored(row: TokenRow, bounds: Mapping[str, Any]) -> NDArray[np.bool_]:
    """What the gate of the mirror image keeps of a completion."""
    assert row.logp_old is not None
    w = np.exp(row.logp - row.logp_old)
    above = (row.advantage > 0) & (w > 1 + bounds["high"])
    return np.asarray(~(above | ((row.advantage < 0) & (w < 1 - bounds["low"]))))


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# -- the table -------------------------------------------------------------------------------------


def rows_from(
    trunk: Run, folder: Path, generation: int, methods: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Rows of the branches of one state: of itself, and of every arm."""
    branches = {
        arm: branched(trunk, folder, generation, arm, methods.get(arm, methods["atr"]))
        for arm in ("state", *ARMS)
    }
    _, cls, content = of_run(trunk.path)
    style = build(cls, content, Source(str(trunk.path), {}, {})).rl.style
    models = {arm: load_model(str(of.path / "final"), style) for arm, of in branches.items()}
    state, tokenizer = models["state"]
    texts = texts_of(trunk, tokenizer, style)
    before = [logps(state, text) for text in texts.answers]
    bounds = {name: methods["mirror"][name] for name in ("low", "high")}
    pair = [models[arm][0] for arm in ("atr", "mirror")]
    told = predicted(state, pair, branches["atr"], tokenizer, style, bounds)
    for arm, (policy, _) in models.items():
        key = {**key_of(trunk), "arm": arm, "generation": generation}
        yield {**key, **compared(policy, before, texts), **told}


def main() -> None:
    """Make what is not there yet, and add its rows to the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--suite", type=Path, default=SUITE)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--generations", type=int, nargs="+", default=GENERATIONS)
    parser.add_argument("--to", type=Path, default=FOLDER)
    options = parser.parse_args()
    plan = yaml.safe_load(options.suite.read_text(encoding="utf-8"))
    states = {(seed, n) for seed in plan["seeds"][: options.seeds] for n in options.generations}
    options.to.mkdir(parents=True, exist_ok=True)
    table, known = options.to / "branches.parquet", set[tuple[int, int]]()
    if table.exists():
        known = {(row["seed"], row["generation"]) for row in pq.read_table(table).to_pylist()}
    if states <= known:
        print(f"{table} has every state; --to FOLDER makes them anew")
        return
    for trunk in trunks(options.suite, options.folder, options.seeds):
        agreed = alike(trunk, FOLDER / "generations.parquet")
        for generation in options.generations:
            if (trunk.config["seed"], generation) in known:
                continue
            rows = rows_from(trunk, options.folder, generation, plan["methods"])
            count = added(table, [{**row, "alike": agreed} for row in rows], BRANCH)
            print(f"{count} branches in {table}")
            for copy in options.folder.glob(f"seed{trunk.config['seed']}-generation{generation}-*"):
                shutil.rmtree(copy)


if __name__ == "__main__":
    main()
