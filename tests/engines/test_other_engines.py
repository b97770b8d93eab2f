# pyright: reportMissingImports=false
"""Adapters of the loss for other engines: against the real function where PyPI has it, else against
a stand-in with the fields of its documentation.
"""

import dataclasses
import importlib
import math
import pickle
import re
import sys
import types
from pathlib import Path
from typing import Any

import checkouts
import engine_cases
import method_cases
import pytest
import torch
from torch import Tensor

import trustclip as tc
from trustclip.constraints import rosetta
from trustclip.engines import prime_rl
from trustclip.engines import tinker as ours
from trustclip.engines.limits import ENGINES, refusal
from trustclip.engines.nemo_rl import TrustclipLoss
from trustclip.engines.skyrl import register
from trustclip.engines.token_loss import means, per_token_loss

METHODS = ["atr", "gspo", "cispo", "soft_gate"]
each = pytest.mark.parametrize("name", METHODS)


def stand_in(monkeypatch: pytest.MonkeyPatch, path: str, **names: Any) -> None:
    """A module of that path, with every package above it."""
    parts = path.split(".")
    for i in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    for name, value in names.items():
        setattr(sys.modules[path], name, value)


def leaf_of(batch: tc.TokenBatch) -> Tensor:
    return batch.logp.detach().clone().requires_grad_()


def close(got: Tensor | None, want: Tensor) -> None:
    assert got is not None
    torch.testing.assert_close(got, want, rtol=2e-6, atol=1e-8)


# Tinker ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tinker() -> Any:
    return pytest.importorskip("tinker", reason="tinker is not installed here: make verl-setup")


def datum_of(tinker: Any, **fields: Tensor) -> Any:
    length = len(fields["logprobs"])
    floats = {name: tinker.TensorData.from_torch(x.float()) for name, x in fields.items()}
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints([1] * length),
        loss_fn_inputs={"target_tokens": [1] * length, **floats},
    )


def sent_to_server(
    method: tc.Method, data: list[Any], logprobs: list[Tensor]
) -> tuple[list[Tensor], dict[str, float]]:
    """The weights of Tinker's backward pass and the metrics, from the client's own code.

    The server minimises -weights * logp, so the weights are the coefficients.
    """
    from tinker import TensorData
    from tinker.lib.public_interfaces.training_client import TrainingClient

    outputs = [{"logprobs": TensorData.from_torch(x.float())} for x in logprobs]
    forward = types.SimpleNamespace(loss_fn_outputs=outputs)
    arguments = method.to_dict()
    loss = ours.custom_loss(arguments.pop("name"), **arguments)
    result = TrainingClient._compute_custom_loss(data, loss, forward)
    return [x.loss_fn_inputs["weights"].to_torch() for x in result.data], result.metrics


IN_TINKER = [m for m in method_cases.ALL if refusal(m, ENGINES["Tinker"]) is None]


@pytest.mark.parametrize("method", IN_TINKER, ids=method_cases.label)
def test_the_cookbooks_datum_is_right_in_tinkers_client(method: tc.Method, tinker: Any) -> None:
    """No mask: what was not sampled, a prompt or a tool's answer, is padded with zeros."""
    of_two = engine_cases.batch_for(method)
    of_one = (of_two.logp, of_two.logp_old, of_two.advantages, of_two.mask)
    batch = tc.TokenBatch(*of_one, logp_rollout=of_two.logp_old)
    prompts = [torch.zeros(20 + 7 * i) for i in range(len(batch.logp))]
    data = [
        datum_of(
            tinker,
            logprobs=torch.cat([prompt, batch.logp_old[i]]),  # 0 where masked
            advantages=torch.cat([prompt, batch.advantages[i]]),
        )
        for i, prompt in enumerate(prompts)
    ]
    logp = torch.where(batch.mask, batch.logp, -2.5)
    logprobs = [torch.cat([x - 2.5, logp[i]]) for i, x in enumerate(prompts)]
    weights, metrics = sent_to_server(method, data, logprobs)
    for i, (prompt, got) in enumerate(zip(prompts, weights, strict=True)):
        close(got, torch.cat([prompt, tc.coefficient(method, batch)[i]]))
    logged = means(batch, method.surrogate(batch))
    assert metrics == pytest.approx({name: x.item() for name, x in logged.items()}, 1e-5, 1e-7)


@pytest.mark.parametrize("name", ["mask", "sequence_ratio_mask"])
def test_a_datum_without_a_mask_leaves_those_of_others_on(name: str, tinker: Any) -> None:
    old, advantages = torch.full((3,), -1.0), torch.ones(3)
    # Where a datum has both, `mask` counts.
    masked = {"sequence_ratio_mask": advantages, name: torch.tensor([0.0, 1, 1])}
    data = [datum_of(tinker, logprobs=old, advantages=advantages, **more) for more in (masked, {})]
    weights, metrics = sent_to_server(tc.method("atr"), data, [old - 0.1] * 2)
    weight = torch.tensor(-0.1).exp()
    close(weights[0], weight * masked[name])
    close(weights[1], weight * advantages)
    assert metrics["trustclip/ratio"] == pytest.approx(weight.item())


class ClientOfServer:
    """``ServiceClient.create_custom_loss`` without a server: the client traces, checks, encodes."""

    def create_custom_loss(self, fn: Any, input_ranks: Any) -> Any:
        from tinker.lib.public_interfaces import custom_loss

        handle = custom_loss.trace_loss(fn, input_ranks, "session")
        self.sent = custom_loss.encode_graph(handle)
        return types.SimpleNamespace(result=lambda: handle)


ON_SERVER = [
    *(tc.method(name) for name in ("atr", "clip", "gspo", "cispo", "soft_gate", "reinforce")),
    *(tc.method(name, anchor="rollout") for name in ("dppo", "opsm", "trm", "vespo")),
    *(tc.method("atr", level="turn"), tc.method("bandpo")),
]


@pytest.mark.parametrize("method", ON_SERVER, ids=method_cases.label)
def test_the_graph_on_tinkers_server_has_the_methods_gradient(
    method: tc.Method, tinker: Any
) -> None:
    """On data of other lengths than the graph was traced with, and on whichever device."""
    from tinker.lib.public_interfaces import custom_loss

    arguments = method.to_dict()
    client = ClientOfServer()
    handle = ours.server_loss(client, arguments.pop("name"), **arguments)
    of_two = engine_cases.batch_for(method)
    of_one = (of_two.logp, of_two.logp_old, of_two.advantages, of_two.mask)
    batch = tc.TokenBatch(*of_one, logp_rollout=of_two.logp_old)
    data = ours.server_data(
        [
            datum_of(tinker, logprobs=old, advantages=advantage, mask=mask)
            for old, advantage, mask in zip(
                batch.logp_old, batch.advantages, batch.mask, strict=True
            )
        ]
    )
    custom_loss.check_loss_inputs(handle, data)
    leaf = leaf_of(batch)
    loss, metrics = custom_loss.run_loss_handle(handle, data, list(leaf))
    loss.backward()
    close(leaf.grad, -tc.coefficient(method, batch))
    logged = means(batch, method.surrogate(batch), tokens=torch.ones(()))
    for name in ("gated", "k3"):
        assert metrics[f"custom/{name}:sum"] == pytest.approx(
            logged[f"trustclip/{name}"].item(), 1e-5, 1e-7
        )
    assert metrics["custom/tokens:sum"] == batch.mask.sum()
    assert handle.graph(*[torch.ones(9, device="meta")] * 4)[0].device.type == "meta"
    assert not [node.target for node in client.sent.nodes if "aten" in node.target]


#: A method whose steps depend on its numbers, which no graph can take.
BRANCHES = """
import trustclip as tc

@tc.definition
class Branches(tc.Method):
    name = "branches"

    def surrogate(self, batch):
        return tc.method("clip" if batch.log_ratio.max() > 1 else "kl2").surrogate(batch)
"""


def test_what_tinkers_server_cannot_compute_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    nobody: Any = None  # nothing may be asked of the client
    with pytest.raises(ValueError, match="'tis' would do nothing; name its inner method"):
        ours.server_loss(nobody, "tis")
    (tmp_path / "branches.py").write_text(BRANCHES)
    with pytest.raises(ValueError, match="'branches' cannot run on Tinker's server with these"):
        ours.server_loss(nobody, f"{tmp_path / 'branches.py'}:Branches")


@pytest.mark.slow
def test_a_graph_that_follows_its_example_alone_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = ours._graph(tc.method("atr"))
    monkeypatch.setattr(ours, "_graph", lambda method: graph)
    nobody: Any = None
    with pytest.raises(ValueError, match="its graph gave another gradient than the method"):
        ours.server_loss(nobody, "atr", delta=0.001)


# SkyRL -----------------------------------------------------------------------------------------


@each
def test_skyrl_finds_the_loss_in_its_registry(name: str, skyrl: Any) -> None:
    import cloudpickle
    from skyrl.train.config import AlgorithmConfig

    method = tc.method(name)
    batch = engine_cases.batch_for(method)
    register(name, policy_loss_type=f"ours_{name}")
    policy_loss = cloudpickle.loads(cloudpickle.dumps(skyrl.PolicyLossRegistry.get(f"ours_{name}")))
    mask = batch.mask.float()
    scaled = skyrl.apply_loss_reduction_to_advantages_minibatch(
        batch.advantages, mask, "token_mean", micro_batch_size=7, max_seq_len=11
    )
    logp = leaf_of(batch)
    loss, metrics = policy_loss(  # as the worker calls it
        logp,
        batch.logp_old,
        scaled,
        config=AlgorithmConfig(policy_loss_type=f"ours_{name}"),
        loss_mask=mask,
        rollout_logprobs=None,
    )
    loss.backward()
    close(logp.grad, engine_cases.expected_gradient(method, batch, "dapo").float())
    assert metrics["clip_ratio"] == metrics["trustclip/gated"]


def test_skyrl_corrects_for_the_sampler_by_itself(skyrl: Any) -> None:
    from skyrl.train.config import AlgorithmConfig, OffPolicyCorrectionConfig

    batch = engine_cases.batch_for(tc.method("atr"))
    register("atr", policy_loss_type="ours_corrected")
    rollout = batch.logp_old - 0.1 * torch.sin(torch.arange(batch.logp.numel())).view_as(batch.logp)
    correction = OffPolicyCorrectionConfig(tis_ratio_type="token", token_tis_ratio_clip_high=1.05)
    logp = leaf_of(batch)
    loss, _ = skyrl.PolicyLossRegistry.get("ours_corrected")(
        logp,
        batch.logp_old,
        batch.advantages,
        config=AlgorithmConfig(off_policy_correction=correction),
        loss_mask=batch.mask.float(),
        rollout_logprobs=rollout,
    )
    loss.backward()
    with_sampler = dataclasses.replace(batch, logp_rollout=rollout)
    close(logp.grad, -tc.coefficient(tc.method("tis", inner="atr", ceiling=1.05), with_sampler))


def test_tokens_that_skyrl_rejects_count_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its correction returns a mask of its own: tokens outside weigh nothing in the mean."""
    registered: dict[str, Any] = {}

    def rejecting(loss: Tensor, old: Tensor, rollout: Tensor, mask: Tensor, config: Any) -> Any:
        kept = mask.clone()
        kept[:, 0] = 0
        return 2 * loss, kept, {"rejected": 1.0}

    def reduced(loss: Tensor, mask: Tensor) -> Tensor:
        return (loss * mask).sum() / mask.sum()

    utilities = "skyrl.backends.skyrl_train.utils"
    registry = types.SimpleNamespace(register=registered.__setitem__)
    stand_in(
        monkeypatch, f"{utilities}.ppo_utils", PolicyLossRegistry=registry, reduce_loss=reduced
    )
    theirs = types.ModuleType(f"{utilities}.off_policy_correction_utils")
    theirs.apply_off_policy_correction = rejecting  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, theirs.__name__, theirs)
    for name in ("ppo_utils", "off_policy_correction_utils"):
        path = f"{utilities}.{name}"
        monkeypatch.setattr(sys.modules[utilities], name, sys.modules[path], raising=False)
    method = tc.method("atr")
    batch = engine_cases.batch_for(method)
    register("atr", policy_loss_type="ours")
    config = types.SimpleNamespace(off_policy_correction=types.SimpleNamespace(tis_ratio_type=None))
    logp, mask = leaf_of(batch), batch.mask.float()
    loss, metrics = registered["ours"](
        logp, batch.logp_old, batch.advantages, config, mask, batch.logp_old
    )
    loss.backward()
    kept = mask.clone()
    kept[:, 0] = 0
    close(logp.grad, -2 * kept * tc.coefficient(method, batch) / kept.sum())
    assert metrics["rejected"] == 1


def test_a_correction_is_made_once_in_skyrl(skyrl: Any) -> None:
    from skyrl.train.config import AlgorithmConfig, OffPolicyCorrectionConfig

    method = tc.method("icepop")
    batch = engine_cases.batch_for(method)
    register("icepop", policy_loss_type="ours_icepop")

    def loss_of(logp: Tensor, **correction: Any) -> Tensor:
        return skyrl.PolicyLossRegistry.get("ours_icepop")(
            logp,
            batch.logp_old,
            batch.advantages,
            config=AlgorithmConfig(off_policy_correction=OffPolicyCorrectionConfig(**correction)),
            loss_mask=batch.mask.float(),
            rollout_logprobs=batch.logp_rollout,
        )[0]

    logp = leaf_of(batch)
    loss_of(logp).backward()
    close(logp.grad, -tc.coefficient(method, batch))
    with pytest.raises(ValueError, match="'icepop' corrects for the sampler, and so does SkyRL"):
        loss_of(leaf_of(batch), tis_ratio_type="token")


def test_skyrl_scales_advantages_which_a_penalty_does_not_stand(skyrl: Any) -> None:
    with pytest.raises(ValueError, match="not proportional to the advantages"):
        register("ppo_penalty", policy_loss_type="ours_penalty")


# prime-rl and NeMo-RL: not on PyPI -------------------------------------------------------------


@pytest.fixture
def outputs_of_prime_rl(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = dataclasses.make_dataclass("LossOutputs", ["loss", "metrics"])
    stand_in(monkeypatch, OWN_LOSSES, LossOutputs=outputs)


@each
@pytest.mark.usefixtures("outputs_of_prime_rl")
def test_prime_rl_sums_over_sequences(name: str) -> None:
    method = tc.method(name)
    batch = engine_cases.batch_for(method)
    logp, weights = leaf_of(batch), torch.linspace(0.5, 2, 11)
    for i, row in enumerate(logp):
        inputs = types.SimpleNamespace(
            trainer_logprobs=row,
            inference_logprobs=batch.logp_old[i],
            advantages=batch.advantages[i],
            loss_mask=batch.mask[i],
            loss_weights=weights,
        )
        output = prime_rl.loss(inputs, method=name)
        output.loss.backward()
        assert all(isinstance(value, Tensor) for value in output.metrics.values())
    close(logp.grad, -weights * tc.coefficient(method, batch))


class StandIn:
    """What the adapter reads of NeMo-RL's ``ClippedPGLossFn``, with a KL of k2 to the reference."""

    def __init__(self, **settings: Any) -> None:
        level = settings.get("token_level_loss", True)
        self.loss_type = types.SimpleNamespace(name="TOKEN_LEVEL" if level else "SEQUENCE_LEVEL")
        self.force_on_policy_ratio = settings.get("force_on_policy_ratio", False)
        self.use_importance_sampling_correction = settings.get(CORRECTION, False)
        self.reference_policy_kl_penalty = settings.get(KL, 0.0)
        self.metric_normalizations = {"token_mult_prob_error": "tokens", "loss": "tokens"}

    def __call__(
        self,
        next_token_logprobs: Tensor,
        data: Any,
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
    ) -> Any:
        assert not data["advantages"].any()
        mask = data["token_mask"][:, 1:] * data["sample_mask"][:, None]
        kl = kl_in_nemo(next_token_logprobs, data["reference_policy_logprobs"][:, 1:])
        mean = mean_in_nemo(self, kl, mask, global_valid_seqs, global_valid_toks)
        loss = self.reference_policy_kl_penalty * mean
        logged = {"loss": loss.item(), "probs_ratio_clamped": 1.0, "token_mult_prob_error": 1.01}
        return loss, logged | {"num_valid_samples": data["sample_mask"].sum().item()}


CORRECTION, KL = "use_importance_sampling_correction", "reference_policy_kl_penalty"
OWN_LOSSES = "prime_rl.trainer.rl.loss"
OWN_LOSS = "nemo_rl.algorithms.loss.loss_functions"


def own_loss() -> Any:
    """NeMo-RL's module of losses, where it is installed, or from its checkout."""
    try:
        return importlib.import_module(OWN_LOSS)
    except ImportError:
        return checkouts.nemo_rl(OWN_LOSS)


@pytest.fixture(params=["a stand-in", "NeMo-RL"])
def nemo(request: pytest.FixtureRequest) -> Any:
    """Builds the loss that NeMo-RL's ``setup`` returns."""
    if request.param == "a stand-in":
        return StandIn
    theirs = own_loss()
    quiet: Any = {KL: 0.0, "reference_policy_kl_type": "k2"}
    return lambda **set: theirs.ClippedPGLossFn(theirs.ClippedPGLossConfig(**quiet | set))


def kl_in_nemo(logp: Tensor, reference: Tensor) -> Tensor:
    """k2, with the gradient through the probability of the sample as well."""
    return (logp - logp.detach()).exp() * (logp - reference) ** 2 / 2


def mean_in_nemo(theirs: Any, x: Tensor, mask: Tensor, seqs: Any, toks: Any) -> Tensor:
    if theirs.loss_type.name == "TOKEN_LEVEL":
        return (x * mask).sum() / toks
    return ((x * mask).sum(1) / mask.sum(1).clamp(min=1)).sum() / seqs


def given_to_nemo(batch: tc.TokenBatch, samples: Tensor) -> dict[str, Tensor]:
    def shifted(x: Tensor) -> Tensor:  # NeMo-RL's tensors have a place for the first token
        return torch.cat([torch.full_like(x[:, :1], 9), x], dim=1)

    return {
        "prev_logprobs": shifted(batch.logp_old),
        "generation_logprobs": shifted(batch.logp_old - 0.01),
        "reference_policy_logprobs": shifted(batch.logp_old - 0.1),
        "advantages": shifted(batch.advantages),
        "token_mask": shifted(batch.mask.float()),
        "sample_mask": samples,
    }


def given_to_prime_rl(batch: tc.TokenBatch, i: int, **more: Any) -> Any:
    return types.SimpleNamespace(
        trainer_logprobs=batch.logp[i],
        inference_logprobs=batch.given("logp_rollout")[i],
        advantages=batch.advantages[i],
        loss_mask=batch.mask[i],
        loss_weights=None,
        **more,
    )


@pytest.mark.usefixtures("outputs_of_prime_rl")
def test_the_set_that_the_sampler_kept_is_centered_in_prime_rl() -> None:
    """Against the formula of prime-rl's own centered loss, its padding and its rare tokens too."""
    import test_rosetta
    from engine_formulas import FORMULAS, of

    (row,) = (r for r in rosetta.ENGINES["prime-rl"].rows if r.name == "ipo+sc")
    batch = test_rosetta.tokens_of("prime-rl", row)
    assert batch.candidates is not None
    among = batch.candidates
    leaves = [x.clone().requires_grad_() for x in (batch.logp, among.logp)]
    theirs = torch.where(batch.mask, FORMULAS["prime-rl", "ipo+sc"](of(batch, *leaves)), 0.0)
    want = torch.autograd.grad(theirs.sum(), leaves)
    arguments = tc.preset("prime-rl", "ipo+sc").to_dict()
    name = arguments.pop("name")
    own, mine = (x.clone().requires_grad_() for x in (batch.logp, among.logp))
    for i in range(len(own)):
        padded = torch.nn.functional.pad  # a row with fewer ids: 0 of the trainer, -inf of q
        given = given_to_prime_rl(
            dataclasses.replace(batch, logp=own),
            i,
            trainer_mask_logprobs=padded(mine[i], (0, 3)),
            inference_mask_logprobs=padded(among.logp_rollout[i], (0, 3), value=-torch.inf),
        )
        output = prime_rl.loss(given, name, arguments)
        assert output.metrics["trustclip/uncentered"] == 0
        output.loss.backward()
    for leaf, right in zip((own, mine), want, strict=True):
        torch.testing.assert_close(leaf.grad, right, rtol=1e-6, atol=1e-10)


@pytest.mark.usefixtures("outputs_of_prime_rl")
def test_a_sequence_without_a_set_is_left_uncentered_and_an_older_prime_rl_is_refused() -> None:
    batch = engine_cases.batch_for(tc.method("ipo"))
    none = {"trainer_mask_logprobs": None, "inference_mask_logprobs": None}
    plain = prime_rl.loss(given_to_prime_rl(batch, 0), "ipo").loss
    centered = prime_rl.loss(given_to_prime_rl(batch, 0, **none), "centered", {"inner": "ipo"})
    assert centered.loss == plain and centered.metrics["trustclip/uncentered"] == 1
    with pytest.raises(ValueError, match="passes none to a loss: it does since September 2026"):
        prime_rl.loss(given_to_prime_rl(batch, 0), "centered", {"inner": "ipo"})


@pytest.mark.parametrize("config", ["IPO", "IcePop", "PPO", "CISPO"])
def test_prime_rls_own_losses_weigh_rare_tokens_alike(config: str) -> None:
    theirs = pytest.importorskip(OWN_LOSSES, reason="prime-rl, which PyPI has not, is not here")
    configs = importlib.import_module("prime_rl.configs.trainer")
    if "max_importance_ratio" not in configs.IPOLossConfig.model_fields:
        pytest.skip("the losses of this prime-rl, from before September 2026, have no cap")
    batch = engine_cases.batch_for(tc.method("ipo"))
    rare = torch.arange(11) % 3 == 0
    new = torch.where(rare, 0.2, 0.5) * batch.logp.exp()
    sampler = torch.where(rare, -25.0, batch.given("logp_rollout"))
    chosen = tc.preset("prime-rl", config.lower()).to_dict()
    name = chosen.pop("name")
    for i, mask in enumerate(batch.mask):
        own, ours = (new[i].log().requires_grad_() for _ in range(2))
        given = (sampler[i], None, batch.advantages[i], mask, torch.linspace(0.5, 2, 11))
        built = theirs.setup_rl_loss_fn(getattr(configs, f"{config}LossConfig")())
        built.loss(theirs.LossInputs(own, *given)).loss.backward()
        prime_rl.loss(theirs.LossInputs(ours, *given), name, chosen).loss.backward()
        torch.testing.assert_close(ours.grad, own.grad, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("name", ["atr", "vaco", "ipo", "importance_sampling"])
@pytest.mark.usefixtures("outputs_of_prime_rl")
def test_no_token_outweighs_an_update_of_prime_rl(name: str) -> None:
    """p = e^-25 and q = 0.2, a ratio of 1.4e10, where it goes back towards the sampler."""
    logp = torch.tensor([0.2, 0.2]).log().requires_grad_()
    inputs = types.SimpleNamespace(
        trainer_logprobs=logp,
        inference_logprobs=torch.tensor([-25.0, -1.7]),
        advantages=torch.tensor([-1.0, -1.0]),
        loss_mask=torch.tensor([True, True]),
        loss_weights=None,
    )
    output = prime_rl.loss(inputs, name)
    output.loss.backward()
    close(logp.grad, torch.tensor([1e4, 0.2 * math.exp(1.7)]))
    assert output.metrics["trustclip/ratio"] > 1e9


@each
@pytest.mark.parametrize("level", [True, False], ids=["tokens", "sequences"])
def test_nemo_rl_keeps_all_but_the_policy_term(name: str, level: bool, nemo: Any) -> None:
    method = tc.method(name)
    batch = engine_cases.batch_for(method)
    samples = torch.tensor([1.0, 1, 0, 1, 1, 1, 1])
    data, (seqs, toks) = given_to_nemo(batch, samples), (torch.tensor(6), torch.tensor(40))
    theirs = nemo(token_level_loss=level, **{KL: 0.3})
    ours = pickle.loads(pickle.dumps(TrustclipLoss(theirs, name)))
    logp = leaf_of(batch)
    loss, metrics = ours(logp, data, seqs, toks)
    loss.backward()

    kept = batch.mask & (samples > 0)[:, None]
    alone = tc.TokenBatch(leaf_of(batch), batch.logp_old, batch.advantages, kept)
    policy, surrogate = per_token_loss(method, alone)
    to_reference = kl_in_nemo(alone.logp, batch.logp_old - 0.1)
    whole = mean_in_nemo(theirs, policy + 0.3 * to_reference, kept.float(), seqs, toks)
    (gradient,) = torch.autograd.grad(whole, alone.logp)
    close(logp.grad, gradient)
    assert metrics["loss"] == pytest.approx(whole.item(), 1e-5) == pytest.approx(loss.item(), 1e-5)
    assert metrics["num_valid_samples"] == 6
    gated = (kept & ~surrogate.kept).sum() / 40
    assert metrics["trustclip/gated"] == pytest.approx(gated.item())


def test_nemo_rl_logs_what_its_trainers_read(nemo: Any) -> None:
    """After each update they look up some names without asking whether they are there."""
    batch = engine_cases.batch_for(tc.method("atr"))
    data = given_to_nemo(batch, torch.ones(7))
    theirs = nemo(token_level_loss=False)
    ours = TrustclipLoss(theirs, "atr")
    logged = ours(batch.logp, data, torch.tensor(7), torch.tensor(50))[1]
    assert {"loss", "num_valid_samples", "token_mult_prob_error"} <= logged.keys()
    kinds = ours.metric_normalizations
    of_tokens = {key for key in logged if key.startswith("trustclip/")}
    assert {kinds[key] for key in of_tokens} == {kinds["token_mult_prob_error"]} != {None}
    assert ours.loss_type is theirs.loss_type
    assert ours.reference_policy_kl_penalty == theirs.reference_policy_kl_penalty
    assert not [key for key in logged if key.startswith("probs_ratio_clamped")]


@pytest.mark.parametrize("module", ["grpo", "grpo_sync"])
def test_the_names_that_nemo_rls_source_reads_are_logged(module: str) -> None:
    theirs = own_loss()
    assert theirs.__file__ is not None
    source = Path(theirs.__file__).parents[1].joinpath(f"{module}.py").read_text()
    read, written = (
        set(re.findall(rf'\bmetrics\["(\w+)"\]{then}', source))
        for then in (r"(?!\s*=[^=])", r"(?=\s*=[^=])")
    )
    batch = engine_cases.batch_for(tc.method("atr"))
    loss = TrustclipLoss(theirs.ClippedPGLossFn(theirs.ClippedPGLossConfig()))
    counts = torch.tensor(7), torch.tensor(50)
    logged = loss(batch.logp, given_to_nemo(batch, torch.ones(7)), *counts)[1]
    of_the_worker = {"global_valid_toks"}
    assert read and read - written - of_the_worker <= logged.keys()


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("atr", {"force_on_policy_ratio": True}, "pass zeros for the old policy's log-prob"),
        ("atr", {CORRECTION: True}, r"TrustclipLoss\(loss_fn, 'tis', inner='atr'\)"),
        ("full_kl", {}, "'full_kl' cannot be trained in NeMo-RL: it needs"),
    ],
)
def test_what_would_be_lost_in_nemo_rl_is_refused(
    method: str, settings: dict[str, Any], words: str, nemo: Any
) -> None:
    with pytest.raises(ValueError, match=words):
        TrustclipLoss(nemo(**settings), method)
    with pytest.raises(ValueError, match="takes the loss that NeMo-RL"):
        TrustclipLoss("atr", "atr")
    assert TrustclipLoss(nemo(**{CORRECTION: True}), "tis")


def test_what_an_engine_cannot_supply_is_refused() -> None:
    with pytest.raises(ValueError, match="'full_kl' cannot be trained in Tinker: it needs"):
        ours.custom_loss("full_kl")
    with pytest.raises(ValueError, match="did you mean 'delta'"):
        ours.custom_loss("atr", dleta=1)
    with pytest.raises(ValueError, match="its cookbook subtracts the mean alone"):
        ours.custom_loss("atr", delta=tc.controllers.per_token(by="difficulty"))
