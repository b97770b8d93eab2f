"""Made-up runs, one for each thing that can be said of a run, and all that is said of them.

``python tests/support/golden_runs.py`` writes ``tests/data/findings.txt`` anew: read the difference
before it is committed, since every sentence in it is one that users read.
"""

import html
import io
import json
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from synthetic_runs import Spec, make_run, make_suite, undrawn

from trustclip.logs.recognise import token_rows
from trustclip.logs.tokens import TokenRow, write_tokens
from trustclip.report.collect import Report, collect
from trustclip.report.console import explain, print_comparison
from trustclip.report.page import render
from trustclip.support.jsonl import append_jsonl

GOLDEN = Path(__file__).parents[1] / "data" / "findings.txt"
LOGS = Path(__file__).parents[1] / "data" / "logs"
Rows = list[dict[str, Any]]

PLAIN: dict[str, Any] = {
    "gated": 0.02, "off_policy": 0.9, "k3": 0.01, "ratio_q01": 0.8, "ratio_q99": 1.3,
    "/reward": 0.4, "/grad_norm": 0.1, "/frac_reward_zero_std": 0.2,
    "/completions/clipped_ratio": 0.02, "/completions/mean_length": 300.0,
}  # fmt: skip
IDLE = {"/entropy": 2.0, "/grad_norm": 0.0, "/reward": 0.0, "/frac_reward_zero_std": 1.0,
        "skipped": 0.875}  # fmt: skip
SAMPLER = {
    "sampler/k3": 2e-3, "sampler/abs": 0.03, "sampler/identical_share": 0.25,
    "sampler/current/k3": 0.012, "sampler/current/sequence_ess": 0.9, "sampler/sequence_ess": 0.95,
    "sampler/gated_old": 0.02, "sampler/gated_rollout": 0.05,
}  # fmt: skip
DRIFT = {
    "drift/size": 0.002, "drift/signal": 0.038, "drift/share": 0.05, "drift/pull": 3e-4,
    "drift/pull_positive": 2e-4, "drift/pull_negative": 4e-4, "drift/covered": 1.0,
    "shadow/clip/gated": 0.01, "shadow/clip/both": 0.01, "shadow/clip/cosine": 0.99,
}  # fmt: skip
SCORES = {"mean@2": 0.1, "mean@2/low": 0.05, "mean@2/high": 0.2, "problems": 8, "length": 64}


def rows(count: int = 20, /, **changes: Any) -> Rows:
    """Updates: `PLAIN` with changes, each a value, None to leave out, or a function of progress."""
    found = []
    share = changes.get("gated", PLAIN["gated"])
    kinds = {"gated/positive_above": 0.75 * share, "gated/negative_below": 0.25 * share}
    for i in range(count):
        row = {**PLAIN, **kinds, **{k.replace("__", "/"): v for k, v in changes.items()}}
        row = {k: v(i / max(count - 1, 1)) if callable(v) else v for k, v in row.items()}
        found.append({k: v for k, v in row.items() if v is not None})
    return found


def write(
    folder: Path,
    given: Sequence[Mapping[str, Any]],
    *others: Mapping[str, Any],
    method: Mapping[str, Any] | None = None,
    finished: bool = True,
    **config: Any,
) -> Path:
    """A run directory; names of updates without a slash in front are ours."""
    folder.mkdir(parents=True)
    rl = {"method": {"name": "atr", "delta": 0.07, **(method or {})}, "max_completion_length": 64}
    if method and method["name"] != "atr":
        del rl["method"]["delta"]
    base = {"command": "run", "model": "tiny", "seed": 0, "rl": rl, "eval": {"max_tokens": 64}}
    (folder / "config.yaml").write_text(yaml.safe_dump({**base, **config}))
    lines: Rows = [{"stage": "eval", "task": "sums", **one} for one in others if "mean@2" in one]
    lines += [dict(one) for one in others if "mean@2" not in one]
    for step, row in enumerate(given, start=1):
        ours = {k.lstrip("/") if k[0] == "/" else f"trustclip/{k}": v for k, v in row.items()}
        lines.append({"stage": "rl", "step": step, **ours})
    append_jsonl(folder / "metrics.jsonl", lines)
    if finished:
        (folder / "summary.json").write_text(json.dumps({"command": "run", "finished": True}))
    return folder


def scored(step: int, value: float, half: float = 0.05, **more: Any) -> dict[str, Any]:
    """An evaluation."""
    ends = {"mean@2": value, "mean@2/low": value - half, "mean@2/high": value + half}
    return {"step": step, **SCORES, **ends, **more}


def log_of_trl(folder: Path, given: Sequence[Mapping[str, Any]], **state: Any) -> Path:
    """TRL's own log."""
    folder.mkdir(parents=True)
    history = [{"step": i, "loss": 0.1, "grad_norm": 0.2, **row} for i, row in enumerate(given, 1)]
    whole = {"global_step": len(history), "max_steps": len(history), "logging_steps": 1, **state}
    path = folder / "trainer_state.json"
    path.write_text(json.dumps({"log_history": history, **whole}))
    return path


def _trl(share: float, new: int, **more: Any) -> Rows:
    """Updates of TRL, of which every ``new``-th begins a generation."""
    return [
        {"clip_ratio/region_mean": share * (i % new > 0 or new == 1),
         "clip_ratio/high_mean": 0.7 * share, "clip_ratio/low_mean": 0.3 * share,
         "entropy": 1.0 + 0.01 * (i % 3),
         **({"reward": 0.3, "frac_reward_zero_std": 0.4} if i % new == 0 else {}), **more}
        for i in range(16)
    ]  # fmt: skip


def _words(folder: Path) -> Path:
    rng, found = np.random.default_rng(0), []
    for index in range(40):
        words = [str(word) for word in rng.choice(["the", "tag", "and", "so"], 50)]
        tag = np.array([word == "tag" for word in words])
        logp = np.where(tag, -0.1, -2.0)
        kept = ~tag if index % 2 else np.ones(50, dtype=bool)
        found.append(
            TokenRow(
                logp=logp, logp_old=logp - np.where(tag, 0.5, 0.0), advantage=np.ones(50),
                mask=np.ones(50, dtype=bool), entropy=np.full(50, 2.0), kept=kept, token=words,
                step=1 + index // 10, index=index % 10,
            )
        )  # fmt: skip
    folder.mkdir()
    write_tokens(folder / "tokens.jsonl", found)
    return folder


def _bare(folder: Path) -> Path:
    folder.mkdir()
    found = token_rows(LOGS / "prime_rl" / "weights")
    bare = [TokenRow(row.logp, row.advantage, row.mask, step=row.step) for row in found]
    write_tokens(folder / "tokens.jsonl", bare)
    return folder


def _with_samples(folder: Path, *, each: int, steps: Sequence[int]) -> Path:
    """Completions of generations that began after these updates."""
    samples = [{"stage": "rl", "step": step, "index": i, "response": "4", "reward": 0.0}
               for step in steps for i in range(each)]  # fmt: skip
    append_jsonl(folder / "samples.jsonl", samples)
    return folder


def _shortened(folder: Path, left: int | None) -> Path:
    """A finished run whose log has lost its end, or all of it."""
    log, whole = folder / "metrics.jsonl", 99_999
    hashes = {log.name: {"bytes": whole, "sha256": ""}}
    score = {"tasks": {}, "average": {"mean@2": {"value": 0.3, "low": 0.2, "high": 0.4}}}
    summary = {"command": "run", "finished": True, "hashes": hashes, "initial": score}
    (folder / "summary.json").write_text(json.dumps(summary))
    log.write_bytes(log.read_bytes()[:left]) if left else log.unlink()
    return folder


def _with_gates(folder: Path) -> Path:
    worst = {"generated": 0, "index": 3, "position": 7, "token": 9, "logp": -1.0, "logp_old": -1.0,
             "logp_rollout": -9.0, "text": "</s>"}  # fmt: skip
    gates = {"step": 7, "generated": [4, 4], "index": [0, 1], "gated": [0, 0.5], "worst": [worst]}
    append_jsonl(folder / "gates.jsonl", [gates])
    return folder


FALLS: dict[str, Any] = {
    "sampling_entropy": lambda t: 1.2 - 0.8 * t,
    "sampling_entropy_error": 0.05,
}
SHADOWS = {"shadow/kl2/gated": 0.06, "shadow/kl2/both": 0.01, "shadow/kl2/cosine": 0.9,
           "shadow/clip/gated": 0.0, "shadow/clip/both": 0.0}  # fmt: skip
LAGS = {"k3/lag_0": 0.0, "k3/lag_3_4": 0.01, "k3/lag_17_inf": 0.1, "sampler/k3/lag_0": 0.001,
        "sampler/k3/lag_3_4": 0.002, "sampler/k3/lag_17_inf": 0.4}  # fmt: skip
KINDS = {"gated/p_old_0_0.01": 1.0, "tokens/p_old_0_0.01": 2.0, "gated/p_old_0.1_0.5": 0.08,
         "tokens/p_old_0.1_0.5": 300.0, "gated/p_old_0.5_1": 0.01, "tokens/p_old_0.5_1": 900.0,
         "gated/position_1": 0.01, "gated/position_4": 0.03}  # fmt: skip
NOTICE = {"stage": "notice", "step": 12, "notice": "entropy_collapse",
          "text": "the entropy fell to 0.02 nats per token. Lower learning_rate."}  # fmt: skip
VERDICT = {"stage": "sampler", "step": 0, "harmless": True, "text": "Sampler and trainer agree."}
CUT = "completions/clipped_ratio"

#: Runs of our own: what `write` makes of them.
OWN: dict[str, Callable[[Path], Path]] = {
    "gate never closed": lambda p: write(p, rows(gated=0.0)),
    "gate closed on 8e-7": lambda p: write(p, rows(gated=8e-7)),
    "gate closed on 1e-5": lambda p: write(p, rows(gated=1e-5)),
    "gate healthy": lambda p: write(p, rows(**KINDS)),
    "gate half closed": lambda p: write(p, rows(gated=0.5)),
    "gate half closed, improving": lambda p: write(
        p, rows(gated=0.5, **{"/reward": lambda t: 0.2 + 0.6 * t})
    ),
    "no threshold in the ratios": lambda p: write(p, rows(gated=0.0, ratio_q01=None)),
    "ratio 1": lambda p: write(p, rows(gated=0.0, off_policy=0.0)),
    "method that cuts nothing": lambda p: write(p, rows(gated=0.0), method={"name": "soft_gate"}),
    "drift and its shadows": lambda p: write(p, rows(**SAMPLER, **DRIFT)),
    "controller": lambda p: write(
        p,
        rows(threshold__delta=lambda t: 0.07 + 0.02 * t, threshold__delta__at_limit=0.8),
        method={"name": "atr", "delta": {"controller": "target_gate", "share": 0.02}},
    ),
    "diagnostics": lambda p: write(
        p,
        rows(ess=0.9, advantage_cut=0.04, agreement__precision=0.5, agreement__recall=0.25,
             entropy_slope__cut=0.02, entropy_slope__kept=-0.1, entropy=lambda t: 0.5 - 0.1 * t),
    ),
    "completions named": lambda p: _with_gates(write(p, rows(**SAMPLER))),
    "entropy collapse, rewarded tokens cut": lambda p: write(p, rows(**FALLS)),
    "entropy collapse, gate not the cause": lambda p: write(
        p, rows(**FALLS, gated__positive_above=0.005, gated__negative_below=0.015)
    ),
    "entropy falls, solved": lambda p: write(
        p, rows(**FALLS, **{"/reward": lambda t: 0.5 + 0.45 * t})
    ),
    "entropy falls, score rises": lambda p: write(
        p, rows(**FALLS), scored(0, 0.2), scored(20, 0.6)
    ),
    "entropy over some completions": lambda p: write(
        p, rows(skipped=0.5, entropy=lambda t: 1.3 - t, **{"/entropy": lambda t: 1.3 - t})
    ),
    "entropy within its noise": lambda p: write(
        p, rows(sampling_entropy=lambda t: 1.0 - 0.1 * t, sampling_entropy_error=0.2)
    ),
    "entropy rises": lambda p: write(
        p, rows(sampling_entropy=lambda t: 1.0 + t, sampling_entropy_error=0.02)
    ),
    "score fell": lambda p: write(p, rows(), scored(0, 0.5), scored(10, 0.6), scored(20, 0.3)),
    "score fell within noise": lambda p: write(p, rows(), scored(0, 0.5), scored(20, 0.48)),
    "score fell from its best": lambda p: write(
        p, rows(), scored(0, 0.3), scored(10, 0.6), scored(20, 0.42)
    ),
    "hopeless, cut off": lambda p: write(
        p, [{**IDLE, f"/{CUT}": 0.97}] * 4, scored(0, 0.0, truncated=0.94, no_answer=1.0)
    ),
    "hopeless, no answer": lambda p: write(
        p, rows(**{"/frac_reward_zero_std": 0.9}), scored(0, 0.0, truncated=0.1, no_answer=0.9)
    ),
    "hopeless, unfinished": lambda p: write(
        p, [], scored(0, 0.0, truncated=0.94, no_answer=1.0), finished=False
    ),
    "truncated answers": lambda p: write(
        p,
        rows(**{f"/{CUT}": lambda t: 0.1 + 0.4 * t,
                "/completions/mean_length": lambda t: 200 + 200 * t}),
        scored(0, 0.2, truncated=0.1), scored(20, 0.4, truncated=0.4, no_answer=0.1),
    ),
    "all groups equal": lambda p: write(p, [dict(IDLE)] * 8),
    "all groups equal, but it moved": lambda p: write(p, [{**IDLE, "/grad_norm": 0.1}] * 8),
    "many groups equal": lambda p: write(p, rows(**{"/frac_reward_zero_std": 0.6})),
    "solved": lambda p: write(
        p, rows(**{"/reward": lambda t: 0.6 + 0.4 * t, "/frac_reward_zero_std": lambda t: t})
    ),
    "nothing right": lambda p: _with_samples(
        write(p, rows(**{"/reward": 0.05, "/rewards/length/mean": 0.1, "/rewards/length/std": 0.05,
                         "/rewards/right/mean": 0.0, "/rewards/right/std": 0.0})),
        each=16, steps=(0,),
    ),
    "reward fell within training": lambda p: _with_samples(
        write(p, rows(**{"/reward": lambda t: 0.55 if 0.5 < t < 0.8 else 0.9,
                         "/reward_std": 0.4})),
        each=256, steps=(0, 5, 10, 15),
    ),
    "reward fell by chance": lambda p: _with_samples(
        write(p, rows(**{"/reward": lambda t: 0.55 if 0.5 < t < 0.8 else 0.9,
                         "/reward_std": 0.4})),
        each=16, steps=(0, 5, 10, 15),
    ),
    "few tokens carried an update": lambda p: write(
        p, rows(ess=lambda t: 0.32 if 0.5 < t < 0.55 else 0.97)
    ),
    "log cut": lambda p: _shortened(write(p, rows()), 4_000),
    "log gone": lambda p: _shortened(write(p, rows()), None),
    "numbers that are not finite": lambda p: write(p, rows(nonfinite=lambda t: 0.01 * (t > 0.9))),
    "sampler exact": lambda p: write(
        p, rows(**{**SAMPLER, "sampler/k3": 2e-14, "sampler/identical_share": 0.93})
    ),
    "sampler in half precision": lambda p: write(p, rows(**SAMPLER), VERDICT),
    "sampler far": lambda p: write(
        p, rows(**{**SAMPLER, "sampler/k3": lambda t: 0.01 + 0.08 * t})
    ),
    "sampler far, corrected": lambda p: write(
        p, rows(**{**SAMPLER, "sampler/k3": 0.05}), method={"name": "tis"}
    ),
    "sampler, few completions count": lambda p: write(
        p, rows(**{**SAMPLER, "sampler/current/sequence_ess": 0.2}, **LAGS)
    ),
    "sampler with a tail": lambda p: _with_gates(
        write(p, rows(**{**SAMPLER, "sampler/k3": 0.004}, k3=0.001))
    ),
    "shadows": lambda p: write(p, rows(**SHADOWS)),
    "warnings of the guards": lambda p: write(
        p, rows(), NOTICE, {**NOTICE, "step": 15, "notice": "gate_closed", "text": "closed."}
    ),
    "unfinished": lambda p: write(p, rows(), scored(0, 0.3), finished=False),
    "one update": lambda p: write(p, rows(1), finished=False),
    "no update yet": lambda p: write(p, [], scored(0, 0.3, truncated=0.0), finished=False),
    "updates without metrics of a constraint": lambda p: write(
        p, [{k: v for k, v in row.items() if k[0] == "/"} for row in rows()]
    ),
    "fine-tuning": lambda p: write(
        p, [], *[{"stage": "sft", "step": s, "loss": 2.0 / s} for s in (1, 2, 3)],
        command="sft", rl=None, eval=None,
    ),
    "evaluation": lambda p: write(p, [], scored(20, 0.4), command="eval", rl=None),
    "hostile names": lambda p: write(
        p, rows(**{"shadow/<b>\x1b[31m/gated": 0.1, "shadow/<b>\x1b[31m/both": 0.01}),
        {**NOTICE, "text": "<script>alert(1)</script> \x1b[2J"}, model="<i>tiny</i>",
    ),
}  # fmt: skip

#: Logs of other trainers.
FOREIGN: dict[str, Callable[[Path], Path]] = {
    "TRL, acting": lambda p: log_of_trl(p, _trl(0.1, 4)),
    "TRL, one update per generation": lambda p: log_of_trl(p, _trl(0.0, 1)),
    "TRL, never closed": lambda p: log_of_trl(p, _trl(0.0, 4)),
    "TRL, often closed": lambda p: log_of_trl(p, _trl(0.6, 4)),
    "TRL, unfinished, no schedule": lambda p: log_of_trl(
        p, _trl(0.0, 4), max_steps=99, logging_steps=2
    ),
    "TRL, troubled": lambda p: log_of_trl(
        p,
        [{**row, "entropy": 1.2 - 0.06 * i, "frac_reward_zero_std": 0.5, CUT: 0.1 + i / 40,
          "completions/mean_length": 100.0 + 10 * i, "kl": 0.01 * i,
          "sampling/sampling_logp_difference/mean": 0.2,
          "sampling/sampling_logp_difference/max": 3.0}
         for i, row in enumerate(_trl(0.1, 4))],
    ),
    "TRL, entropy rises": lambda p: log_of_trl(
        p, [{**row, "entropy": 1.0 + 0.1 * i} for i, row in enumerate(_trl(0.1, 4))]
    ),
    "TRL, capped weights": lambda p: log_of_trl(
        p, [{"cispo_clip_ratio": 0.1, "reward": 0.3} for _ in range(8)]
    ),
    "verl": lambda p: LOGS / "verl" / "console.log",
    "verl, lines": lambda p: LOGS / "verl" / "metrics.jsonl",
    "prime-rl": lambda p: LOGS / "prime_rl" / "weights",
    "prime-rl, later release": lambda p: LOGS / "prime_rl" / "losses",
    "tokens with words": _words,
    "tokens alone": _bare,
}  # fmt: skip

ATR = Spec({"name": "atr", "delta": 0.07}, gain=3.0)
CLIP = Spec({"name": "clip", "epsilon": 0.2}, gain=0.2)


def _arms(folder: Path, *specs: Spec, seeds: Sequence[int] = (0,)) -> list[Path]:
    return [
        make_run(folder / f"{spec.method['name']}{i}-{seed}", replace(spec, seed=seed))
        for i, spec in enumerate(specs)
        for seed in seeds
    ]


def _edited(folder: Path, file: str, edit: Callable[[dict[str, Any]], None]) -> Path:
    read, dump = (yaml.safe_load, yaml.safe_dump) if file.endswith("yaml") else (
        json.loads, json.dumps)  # fmt: skip
    content = read((folder / file).read_text())
    edit(content)
    (folder / file).write_text(dump(content))
    return folder


def _overlap(content: dict[str, Any]) -> None:
    content["overlap"] = {"rl": {"excluded": False, "problems": 2, "tests": {"amc23": ["1", "2"]}}}


def _rate(content: dict[str, Any]) -> None:
    content["rl"]["learning_rate"] = 1e-5


def _prompt(content: dict[str, Any]) -> None:
    content["prompt"] = {"system": "Think.", "template": "qwen"}


def _hotter(content: dict[str, Any]) -> None:
    content["eval"]["temperature"] = 1.0


def _conditions(folder: Path) -> list[Path]:
    first, second = _arms(folder, ATR, CLIP)
    _edited(first, "summary.json", lambda c: c.update(prompt={"system": "Hi.", "template": "raw"}))
    _edited(second, "summary.json", _prompt)
    _edited(first, "config.yaml", lambda c: c["eval"].update(temperature=0.6))
    _edited(second, "config.yaml", _hotter)
    return [first, second]


def _copies(folder: Path) -> list[Path]:
    (first,) = _arms(folder, ATR)
    shutil.copytree(first, folder / "copy")
    return [first, folder / "copy"]


GROUPS: dict[str, Callable[[Path], list[Path]]] = {
    "one run": lambda p: _arms(p, ATR),
    "two methods, one seed": lambda p: _arms(p, ATR, CLIP),
    "two alike, one seed": lambda p: _arms(p, CLIP, replace(CLIP, method={"name": "atr"})),
    "three methods, three seeds": lambda p: _arms(
        p, CLIP, ATR, replace(ATR, method={"name": "kl2"}, gated=0.0), seeds=(0, 1, 2)
    ),
    "a method that collapsed": lambda p: [
        *_arms(p, CLIP, seeds=(0, 1, 2)),
        *_arms(p / "x", ATR, seeds=(0, 2)), *_arms(p / "y", replace(ATR, loss=9.0), seeds=(3,)),
    ],
    "trained on the test set": lambda p: [
        _edited(one, "summary.json", _overlap) for one in _arms(p, ATR, CLIP)
    ],
    "different learning rates": lambda p: [
        (one if i else _edited(one, "config.yaml", _rate))
        for i, one in enumerate(_arms(p, ATR, CLIP))
    ],
    "different numbers of samples": lambda p: _arms(p, ATR, replace(CLIP, k=8)),
    "different prompts and sampling": _conditions,
    "a run and its copy": _copies,
    "two models": lambda p: _arms(p, ATR, CLIP, replace(CLIP, model="other/model")),
    "a suite": lambda p: [make_suite(p / "suite", {"clip": CLIP, "atr": ATR}, seeds=(0, 1, 2))],
    "one of two unfinished": lambda p: [
        make_run(p / "atr", ATR, until=45), make_run(p / "clip", CLIP)
    ],
    "own run beside a log": lambda p: [
        *_arms(p, ATR), log_of_trl(p / "trl", _trl(0.1, 4)), LOGS / "verl" / "console.log"
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Runs that are looked at together, and what of them is looked at more than once."""

    paths: Sequence[Path]
    report: Report
    page: str

    @classmethod
    def of(cls, paths: Sequence[Path]) -> "Case":
        report = collect(paths)
        pictures = {figure.key: undrawn(figure) for figure in report.figures}
        return cls(paths, report, render(report, "Report", pictures=pictures))


def on_page(page: str) -> list[str]:
    """What the page of runs says in words: its headline, findings and warnings."""
    found = [f"headline: {plain(page.partition('<h1>')[2].partition('</h1>')[0])}"]
    head = page.partition('id="main"')[2].partition("</header>")[0]
    items = re.findall(r'<li data-severity="(\w+)"[^>]*>(.*?)</li>', head, re.S)
    found += [f"{kind}: {plain(text)}" for kind, text in items]
    warnings = page.partition('<section id="notices"')[2].partition("</section>")[0]
    cells = re.findall(r"<tr><td.*?</tr>|<p.*?</p>", warnings, re.S)
    return [*found, *(f"below: {plain(re.sub('</td>', ' | ', cell))}" for cell in cells)]


def plain(markup: str) -> str:
    """The words of some HTML."""
    text = html.unescape(re.sub(r"<a .*?</a>|<[^>]+>", "", markup)).replace("\xa0", " ")
    return " ".join(text.split())


def compared(paths: Sequence[Path]) -> list[str]:
    """What ``trustclip compare`` says under its table."""
    text = io.StringIO()
    try:
        print_comparison(paths, Console(width=10_000, file=text))
    except ValueError as error:
        return [f"refused: {error}"]
    lines = text.getvalue().splitlines()
    return [lines[0], *(line for line in lines[2:] if not re.match(r"\w+@\d+ ", line))]


def guarded() -> list[str]:
    """What the guards say while a run trains."""
    from trustclip.train.watch.guards import Guards

    found: list[str] = []
    feeds: list[Any] = [
        ({"trustclip/entropy": 1.0 if i < 6 else 0.01, "rewards/correct/mean": 0.1}
         for i in range(12)),
        ({"trustclip/entropy": 1.0 if i < 6 else 0.01} for i in range(12)),
        ({"frac_reward_zero_std": 1.0, "reward": 0.0} for _ in range(12)),
        ({"completions/clipped_ratio": 1.0} for _ in range(4)),
        ({"trustclip/gated": 0.7} for _ in range(6)),
        ({"grad_norm": 0.1 if i < 24 else 9.0, "loss": 0.01 if i < 24 else -3.0}
         for i in range(25)),
        ({"frac_reward_zero_std": 0.1, "trustclip/entropy": math.exp(i / 9)} for i in range(20)),
        ({"frac_reward_zero_std": 0.1, "trustclip/sampler/k3": 1e-4 * math.exp(i / 9),
          "trustclip/sampler/current/sequence_ess": math.exp(-i / 9)} for i in range(20)),
    ]  # fmt: skip
    for given in feeds:
        guards = Guards(lambda step, name, text: found.append(f"{step} {name}: {text}"))
        for step, row in enumerate(given, start=1):
            guards.read(step, row)
    return found


def made(folder: Path) -> dict[str, Case]:
    """Every case by its name: one run of `OWN` or `FOREIGN`, or those of `GROUPS`."""
    found = {}
    for name, make in {**OWN, **FOREIGN, **GROUPS}.items():
        here = folder / re.sub(r"\W+", "-", name)
        if name in GROUPS:
            here.mkdir()
        runs = make(here)
        found[name] = Case.of([runs] if isinstance(runs, Path) else runs)
    return found


def everything(cases: Mapping[str, Case]) -> Iterator[tuple[str, str, list[str]]]:
    """Name of a run, program that speaks of it, and what that says, one run after the other."""
    for name, case in cases.items():
        if name not in GROUPS:
            yield name, "explain", explain(*case.paths)
        yield name, "page", on_page(case.page)
        if name in GROUPS:
            yield name, "compare", compared(case.paths)
    yield "guards", "while training", guarded()


def golden(cases: Mapping[str, Case], folder: Path) -> str:
    """All of it as text, without the names of the folder that the cases are in."""
    parts = [
        f"=== {run}: {program}\n" + "".join(f"{line}\n" for line in said)
        for run, program, said in everything(cases)
    ]
    return "\n".join(parts).replace(f"{folder}/", "").replace(f"{LOGS}/", "logs/")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        GOLDEN.write_text(golden(made(Path(name)), Path(name)))
