"""Every metric that the code logs is described, and everything described is logged."""

import inspect
import re
from pathlib import Path

import torch
from extensions import metrics
from extensions.metrics import GROUPS, Group, Metric
from method_cases import candidates_for
from trl.trainer import grpo_trainer
from trl_runs import constrained, needs

import trustclip as tc
from trustclip.constraints.diagnostics import token_metrics
from trustclip.constraints.loss import gradient
from trustclip.constraints.shadow import WatchedWindow
from trustclip.engines.token_loss import means
from trustclip.engines.trl.recording.records import BRIEF_OF_SAMPLER
from trustclip.logs.answers import score_rows, scores

ROOT = Path(__file__).parents[2]
#: TRL logs these under loss types that the constrained trainer does not use.
NEVER = {"cispo_clip_ratio", "vespo/phi_seq_mean"}
#: Names that the `Trainer` of Transformers and our reward functions give.
OTHERS = {"loss", "grad_norm", "learning_rate", "epoch", "reward_noise"}
METHODS = (
    tc.method("atr", delta=tc.controllers.target_gate(share=0.02, initial=0.07)),
    tc.method("clip") + tc.penalty("k2", 1e-3),
)


def full_batch() -> tc.TokenBatch:
    """Everything that a batch can hold, so that everything is measured."""
    torch.manual_seed(0)
    old = -torch.rand(4, 8) * 2 - 1e-3
    given = torch.rand(4, 8)
    return tc.TokenBatch(
        old + torch.randn(4, 8) * 0.3,
        old,
        torch.randn(4, 8),
        torch.ones(4, 8, dtype=torch.bool),
        entropy=given * 2,
        kl_old_new=given / 5,
        kl_new_old=given / 5,
        logp_rollout=old + torch.randn(4, 8) * 0.01,
        lag=torch.arange(4)[:, None].expand(4, 8),
        candidates=candidates_for(old),
    )


def described(name: str, *groups: Group) -> Metric:
    """The one description of a name."""
    found = [m for g, m in metrics.found(name) if not groups or g in groups]
    assert len(found) == 1, f"{name} has {len(found)} descriptions"
    return found[0]


def listed(place: str, *groups: Group) -> set[str]:
    return {m.name for g in groups for m in g.metrics if place in m.places}


OURS = [GROUPS[name] for name in ("gate", "distance", "tokens", "sampler", "drift")]


def test_those_of_a_call_are_described_with_that_place_and_no_others():
    batch = full_batch()
    names = {
        name for method in METHODS for name in token_metrics(batch, method.surrogate(batch), method)
    }
    assert {described(f"trustclip/{n}").name for n in names} == listed("loss", *OURS)


def test_those_of_a_log_line_are_described_with_that_place_and_no_others():
    batch, names = full_batch(), set()
    for method in METHODS:
        window = WatchedWindow([tc.method("clip", epsilon=0.1), tc.method("dppo")])
        c, surrogate = gradient(method, batch)
        window.add(batch, surrogate, method, coefficient=c)
        names |= set(window.read())
    found = {described(f"trustclip/{name}").name for name in names}
    assert found == listed("log", *OURS, GROUPS["shadows"])


def test_those_of_engines_that_call_a_loss_are_described_with_that_place_and_no_others():
    batch = full_batch()
    names = {n for m in METHODS for n in means(batch, m.surrogate(batch), method=m)}
    assert {described(name).name for name in names} == listed("verl", *OURS)
    assert all(m.places for g in (*OURS, GROUPS["shadows"]) for m in g.metrics)


def test_those_that_the_code_names_are_described():
    source = "".join(
        p.read_text("utf-8") for p in (ROOT / "src/trustclip/engines/trl").rglob("*.py")
    )
    named = set(re.findall(r'_metrics\[[^\]]+\]\["trustclip/(\w+)"\]', source))
    assert named == {m.name for m in GROUPS["trainer"].metrics}


def test_a_log_without_a_recorder_has_those_that_say_what_to_do(tmp_path):
    run = constrained(tmp_path, "atr", max_steps=2, num_iterations=2, metrics="brief")
    names = {name for row in run.history for name in row if name.startswith("trustclip/")}
    assert len(names) <= 20 and not any("sampler/" in name for name in names)
    served = {f"trustclip/{name}" for name in BRIEF_OF_SAMPLER}
    with_a_todo = [(g, m) for g in GROUPS.values() for m in g.metrics if m.todo]
    for group, metric in with_a_todo:
        assert any(metric.matches(n.removeprefix(group.prefix)) for n in names | served), metric
    for name in names | served:
        assert described(name).todo, name


@needs("trl")
def test_those_of_trl_are_the_installed_ones():
    named = re.findall(r'_metrics\[[^\]]+\]\[f?"([^"]+)"\]', inspect.getsource(grpo_trainer))
    named = {re.sub(r"\{\w+\}", "NAME", name) for name in named if name not in NEVER}
    assert named | OTHERS == {m.name for m in GROUPS["trl"].metrics}


def test_those_of_an_evaluation_are_described():
    rows = [
        {"task": task, "id": str(i), "correct": i % 2, "tokens": 4, "extracted": "1",
         "truncated": False, "judged": "direct"}
        for task in "ab" for i in range(4) for _ in range(2)
    ]  # fmt: skip
    names = {name for row in score_rows(scores(rows), 8) for name in row}
    names -= {"stage", "step", "task"}
    found = {described(name, GROUPS["evaluation"]).name for name in names}
    assert found == {m.name for m in GROUPS["evaluation"].metrics}


def test_a_run_logs_nothing_else(tmp_path):
    run = constrained(
        tmp_path, "atr", max_steps=2, num_iterations=2, exact_kl_every=1, shadows=["clip"]
    )
    names = {name for row in run.history for name in row} - {"step"}
    assert len(names) > 60
    for name in names:
        described(name)
