"""slime and miles: a stand-in with the shapes of their data, and the calls read from the source."""

import ast
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import engine_cases
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import trustclip as tc
from trustclip.engines import slime

SOURCES = {
    "slime": "slime.backends.megatron_utils.loss",
    "miles": "miles.backends.training_utils.loss_hub.losses",
}
PROMPT, VOCABULARY = 3, 7
LENGTHS = [5, 1, 9]


def packed(seed: int = 0) -> dict[str, Any]:
    """A micro-batch as slime makes it: a list for each field, a tensor for each response."""
    torch.manual_seed(seed)
    ids = [torch.randint(VOCABULARY, (PROMPT + n,)) for n in LENGTHS]
    masks = [torch.ones(n, dtype=torch.int) for n in LENGTHS]
    masks[2][4:6] = 0  # a tool's answer
    return {
        "unconcat_tokens": ids,
        "total_lengths": [len(x) for x in ids],
        "response_lengths": LENGTHS,
        "loss_masks": masks,
        "advantages": [a * torch.ones(n) for a, n in zip((1.0, -0.5, -2.0), LENGTHS, strict=True)],
        "log_probs": [-2 - 0.5 * torch.randn(n) for n in LENGTHS],
        "rollout_log_probs": [-2 - 0.5 * torch.randn(n) for n in LENGTHS],
        "ref_log_probs": [-2 - 0.5 * torch.randn(n) for n in LENGTHS],
    }


def arguments(**given: Any) -> Any:
    usual: dict[str, Any] = {
        **{"use_rollout_logprobs": False, "entropy_coef": 0.0, "use_kl_loss": False},
        **{"use_tis": False, "use_opsm": False, "use_unbiased_kl": False, "kl_loss_type": "k2"},
        "kl_loss_coef": 0.1,
    }
    return types.SimpleNamespace(**usual | given)


def sum_of_sample_mean(batch: dict[str, Any]) -> Any:
    """Each sample's mean over its own mask, added."""

    def reduce(x: Tensor) -> Tensor:
        rows = zip(x.split(LENGTHS), batch["loss_masks"], strict=True)
        return sum(((row * mask).sum() / mask.sum() for row, mask in rows), torch.zeros(()))

    return reduce


@pytest.fixture(params=["slime", "miles"])
def their(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for the two functions of their module, which needs Megatron and a GPU."""

    def get_log_probs_and_entropy(logits: Tensor, *, args: Any, **batch: Any) -> Any:
        passed: dict[str, list[Tensor]] = {"log_probs": [], "entropy": []}
        rows = logits[0].split(batch["total_lengths"])
        for own, ids, n in zip(
            rows, batch["unconcat_tokens"], batch["response_lengths"], strict=True
        ):
            logp = own[-n - 1 : -1].log_softmax(1)
            passed["log_probs"].append(logp.gather(1, ids[-n:, None])[:, 0])
            passed["entropy"].append(-(logp.exp() * logp).sum(1))
        return (torch.empty(0), passed) if request.param == "slime" else passed

    def k2(new: Tensor, reference: Tensor, kl_loss_type: str, importance_ratio: Any) -> Tensor:
        return (new - reference) ** 2 / 2 * (1 if importance_ratio is None else importance_ratio)

    module = types.ModuleType("loss")
    module.get_log_probs_and_entropy = get_log_probs_and_entropy  # type: ignore[attr-defined]
    module.compute_approx_kl = k2  # type: ignore[attr-defined]
    path = SOURCES[request.param]
    monkeypatch.setattr(slime.util, "find_spec", lambda name: name == request.param or None)
    for i in range(1, path.count(".") + 1):
        name = ".".join(path.split(".")[:i])
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, path, module)


def logits_of(batch: dict[str, Any]) -> Tensor:
    torch.manual_seed(5)
    return torch.randn(1, sum(batch["total_lengths"]), VOCABULARY).requires_grad_()


def as_rows(batch: dict[str, Any], logits: Tensor) -> tuple[tc.TokenBatch, Tensor]:
    """The batch [response, time] of one leaf, computed without the adapter, and the entropy."""
    logp, entropy = [], []
    start = 0
    for ids, n in zip(batch["unconcat_tokens"], LENGTHS, strict=True):
        own = logits[0, start : start + len(ids)][-n - 1 : -1].log_softmax(1)
        logp.append(own[range(n), ids[-n:]])
        entropy.append(-(own.exp() * own).sum(1))
        start += len(ids)
    names = ("log_probs", "advantages", "loss_masks", "rollout_log_probs")
    old, advantages, mask, rollout = (pad_sequence(batch[name], True) for name in names)
    rows = tc.TokenBatch(pad_sequence(logp, True), old, advantages, mask != 0, logp_rollout=rollout)
    return rows, torch.cat(entropy)


@pytest.mark.parametrize("name", ["atr", "gspo", "cispo", "soft_gate", "tis"])
def test_slimes_loss_has_the_gradient_of_the_method(name: str, their: None) -> None:
    batch = packed()
    logits = logits_of(batch)
    loss, metrics = slime.custom_loss(name)(arguments(), batch, logits, sum_of_sample_mean(batch))
    (got,) = torch.autograd.grad(loss, logits)
    rows, _ = as_rows(batch, logits)
    weights = engine_cases.weights("grpo", rows.mask) * len(LENGTHS)
    c = tc.coefficient(name, rows)
    want = -(weights * c * rows.logp).sum()
    torch.testing.assert_close(got, torch.autograd.grad(want, logits)[0].float())
    cut = ~tc.method(name).surrogate(rows).kept & rows.mask
    assert metrics["pg_clipfrac"] == pytest.approx((weights * cut).sum().item())
    assert all(value.dim() == 0 and not value.requires_grad for value in metrics.values())


def test_the_old_policy_is_the_sampler_where_slime_says_so(their: None) -> None:
    batch, of = packed(), {"use_rollout_logprobs": True}
    given = logits_of(batch), sum_of_sample_mean(batch)
    loss, usual = (slime.custom_loss("atr")(arguments(**s), batch, *given)[0] for s in (of, {}))
    swapped = batch | {"log_probs": batch["rollout_log_probs"]}
    assert loss == slime.custom_loss("atr")(arguments(), swapped, *given)[0] != usual


def test_entropy_and_kl_of_slime_stay(their: None) -> None:
    batch = packed()
    logits = logits_of(batch)
    reduce = sum_of_sample_mean(batch)
    ours = slime.custom_loss("atr")
    plain = ours(arguments(), batch, logits, reduce)[0]
    more = arguments(entropy_coef=0.3, use_kl_loss=True, use_unbiased_kl=True)
    whole = ours(more, batch, logits, reduce)[0]
    (got,) = torch.autograd.grad(whole - plain, logits)
    rows, entropy = as_rows(batch, logits)
    new = torch.cat([row[:n] for row, n in zip(rows.logp, LENGTHS, strict=True)])
    reference, old = torch.cat(batch["ref_log_probs"]), torch.cat(batch["log_probs"])
    new = torch.where(torch.cat(batch["loss_masks"]) != 0, new, 0.0)
    kl = (new - reference) ** 2 / 2 * (new - old).exp()
    want = 0.1 * reduce(kl) - 0.3 * reduce(entropy)
    torch.testing.assert_close(got, torch.autograd.grad(want, logits)[0])


def test_a_correction_weighs_slimes_own_loss() -> None:
    batch = packed()
    loss = torch.arange(float(sum(LENGTHS)))
    names = ("rollout_log_probs", "loss_masks", "total_lengths", "response_lengths")
    given = {name: batch[name] for name in names}
    weigh = slime.custom_tis("icepop", floor=0.7, ceiling=1.5)
    got, masks, metrics = weigh(
        arguments(), pg_loss=loss, train_log_probs=batch["log_probs"], **given
    )
    ratio = (torch.cat(batch["log_probs"]) - torch.cat(batch["rollout_log_probs"])).exp()
    counts = torch.cat(batch["loss_masks"]) != 0
    weight = torch.where((ratio >= 0.7) & (ratio <= 1.5), ratio, 0.0)
    torch.testing.assert_close(got[counts], (loss * weight)[counts])
    assert masks is batch["loss_masks"] and 0 < metrics["tis_clipfrac"][counts].mean() < 1
    with pytest.raises(ValueError, match="'atr' does not correct for the sampler"):
        slime.custom_tis("atr")
    with pytest.raises(ValueError, match="slime passes none to a correction; use 'all'"):
        slime.custom_tis("sampler", only="negative")


@pytest.mark.parametrize(
    ("setting", "words"),
    [("use_tis", r"--use-tis belongs to .* custom_loss\('tis'"), ("use_opsm", "'opsm'")],
)
def test_what_would_be_lost_in_slime_is_refused(setting: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        slime.custom_loss("atr")(arguments(**{setting: True}), {}, torch.zeros(()), torch.sum)
    with pytest.raises(ValueError, match="'full_kl' cannot be trained in slime: it needs"):
        slime.custom_loss("full_kl")


def test_half_a_sequence_is_refused_in_slime(their: None) -> None:
    batch = packed()
    batch["loss_masks"] = [torch.ones(2 * n) for n in LENGTHS]
    with pytest.raises(ValueError, match="set --context-parallel-size 1"):
        slime.custom_loss("atr")(arguments(), batch, logits_of(batch), torch.sum)


@pytest.mark.parametrize("package", ["slime", "miles"])
def test_the_calls_in_the_source_are_those_of_the_adapter(package: str) -> None:
    """Names of arguments, of fields of the batch and of settings, without importing Megatron."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package}, which PyPI has not, is not here: put its clone on PYTHONPATH")
    source = Path(next(iter(found.submodule_search_locations))).parent.joinpath(
        *SOURCES[package].split(".")
    )
    tree = ast.parse(source.with_suffix(".py").read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name in ("get_log_probs_and_entropy", "compute_approx_kl"):
        imports = [n for n in tree.body if isinstance(n, ast.ImportFrom)]
        assert name in {*functions, *(alias.name for n in imports for alias in n.names)}
    taken = functions["policy_loss_function"].args.args
    assert [one.arg for one in taken] == ["args", "batch", "logits", "sum_of_sample_mean"]
    whole = ast.unparse(functions["policy_loss_function"])
    assert "tis_func(**tis_kwargs)" in whole
    for name in ("pg_loss", "train_log_probs", "rollout_log_probs", "loss_masks"):
        assert f"'{name}': " in whole
    for name in ("advantages", "log_probs", "rollout_log_probs", "ref_log_probs"):
        assert f"batch['{name}']" in whole or f"batch.get('{name}')" in whole
    for name in arguments().__dict__:
        assert f"args.{name}" in whole
    for name in ("unconcat_tokens", "total_lengths", "response_lengths", "with_entropy"):
        assert f"{name}=" in whole
