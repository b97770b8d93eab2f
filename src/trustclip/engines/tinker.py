"""Tinker: the function that ``TrainingClient.forward_backward_custom`` takes.

::

    training_client.forward_backward_custom(data, custom_loss("atr", delta=0.07))

or the same as a graph that Tinker's server runs, without a second forward pass::

    loss = server_loss(service_client, "atr", delta=0.07)
    training_client.forward_backward_custom(server_data(data), loss)
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions
from torch._ops import OpOverload
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.rnn import pad_sequence

from trustclip.constraints.base import Method
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.gradients import gradient
from trustclip.constraints.registry import method as named
from trustclip.engines.limits import check
from trustclip.engines.token_loss import as_floats, means, per_token_loss

CustomLoss = Callable[[Sequence[Any], Sequence[Tensor]], tuple[Tensor, dict[str, float]]]


def custom_loss(method: str = "atr", **method_args: Any) -> CustomLoss:
    """Loss over a list of data, summed over tokens as in Tinker's own losses.

    Each datum's ``loss_fn_inputs`` must have ``logprobs`` (of the policy that sampled, which is
    the old one here) and ``advantages``. The tokens of its ``mask`` count, or else those of its
    ``sequence_ratio_mask``. A datum without both is padded as the cookbook pads it: where
    log-probability and advantage are 0, nothing was sampled. (The cookbook's training loop takes
    ``mask`` out before it calls the server; leave it in.) Only the gradient in each log-probability
    goes to the server.

    Args:
      method: name of the constraint.
      **method_args: its hyper-parameters.

    Raises:
      ValueError: unknown method or hyper-parameter, or a method that needs more than this.
    """
    chosen = check(named(method, **method_args), "Tinker")

    def loss(data: Sequence[Any], logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        def pad(name: str) -> Tensor:
            rows = [datum.loss_fn_inputs[name].to_torch() for datum in data]
            return pad_sequence(
                [row.to(logp) for row, logp in zip(rows, logprobs, strict=True)], True
            )

        logp, old = pad_sequence(list(logprobs), True), pad("logprobs")
        mask = pad_sequence([_sampled(datum.loss_fn_inputs) for datum in data], True)
        mask = mask.to(logp.device)
        batch = TokenBatch(logp, old, pad("advantages"), mask, logp_rollout=old)
        per_token, surrogate = per_token_loss(chosen, batch)
        return per_token.sum(), as_floats(means(batch, surrogate))

    return loss


def _sampled(inputs: Mapping[str, Any]) -> Tensor:
    """True for the tokens of a datum that the policy sampled. Shape [time]."""
    for name in ("mask", "sequence_ratio_mask"):
        if name in inputs:
            return inputs[name].to_torch() != 0
    return (inputs["logprobs"].to_torch() != 0) | (inputs["advantages"].to_torch() != 0)


def server_loss(service_client: Any, method: str = "atr", **method_args: Any) -> Any:
    """Loss that Tinker's server computes itself, in one pass: `custom_loss` needs two.

    The method becomes a graph of functions of torch. Before anything is sent, the graph is
    compared with the method on sequences of other lengths. Three metrics come back as sums over
    tokens: ``custom/gated:sum``, ``custom/k3:sum`` and their number, ``custom/tokens:sum``.

    Args:
      service_client: Tinker's ``ServiceClient`` of the session that trains.
      method: name of the constraint.
      **method_args: its hyper-parameters.

    Returns:
      Tinker's ``LossHandle``; ``forward_backward_custom`` takes it, with the data of `server_data`.

    Raises:
      ValueError: unknown method or hyper-parameter, a method that needs more than this, or one that
        no such graph computes.
    """
    chosen = check(named(method, **method_args), "Tinker")
    try:
        graph = _graph(chosen)
        loss = _over_one_datum(chosen.name, graph)
        traced = fx.symbolic_trace(loss)
    except Exception as error:  # torch's tracers raise errors of many classes
        raise ValueError(
            f"{chosen.name!r} cannot run on Tinker's server with these hyper-parameters: its steps "
            "cannot be written as one graph of functions of torch; use custom_loss."
        ) from error
    if not all(_agrees(chosen, traced, length) for length in (1, 2, 37)):
        raise ValueError(
            f"{chosen.name!r} cannot run on Tinker's server with these hyper-parameters: its graph "
            "gave another gradient than the method; use custom_loss."
        )
    ranks = dict.fromkeys(inspect.signature(loss).parameters, 1)
    return service_client.create_custom_loss(loss, input_ranks=ranks).result()


def server_data(data: Sequence[Any]) -> list[Any]:
    """The data that `server_loss` reads, from those of `custom_loss`.

    A loss on the server reads the policy in training under the name ``logprobs``. So the
    log-probabilities of the policy that sampled are named ``old_logprobs`` here, and every datum
    has a ``mask``.
    """

    def renamed(inputs: Mapping[str, Any]) -> dict[str, Any]:
        old = inputs["logprobs"]
        mask = type(old).from_torch(_sampled(inputs).float())
        kept = {name: inputs[name] for name in ("target_tokens", "advantages")}
        return {**kept, "old_logprobs": old, "mask": mask}

    return [replace(datum, loss_fn_inputs=renamed(datum.loss_fn_inputs)) for datum in data]


def _of_one(*inputs: Tensor) -> TokenBatch:
    """The batch of one datum, from what `server_loss` reads."""
    logp, old, advantages, mask = (x[None] for x in inputs)
    return TokenBatch(logp, old, advantages, mask != 0, logp_rollout=old)


def _graph(method: Method) -> fx.GraphModule:
    """What a step needs of a datum, as a graph: coefficients, objective, sums of metrics."""

    def computed(*inputs: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        batch = _of_one(*inputs)
        c, surrogate = gradient(method, batch)
        sums = means(batch, surrogate, tokens=torch.ones(()))
        logged = {f"custom/{name}:sum": sums[f"trustclip/{name}"] for name in ("gated", "k3")}
        return c[0], surrogate.objective.detach()[0], logged

    example = tuple(torch.linspace(start, -0.1, 8) for start in (-1.0, -1.5, 1.0, -2.0))
    options: dict[str, Any] = {
        "decomposition_table": core_aten_decompositions(),
        "tracing_mode": "symbolic",
    }
    plain = make_fx(computed, **options)(*example)
    graph = make_fx(functionalize(plain), **options)(*example)  # without changes in place
    graph.graph.eliminate_dead_code()
    return graph


def _over_one_datum(name: str, graph: fx.GraphModule) -> Callable[..., Any]:
    """The loss of one datum, as ``ServiceClient.create_custom_loss`` takes it."""

    def loss(
        logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        now = logprobs.detach()
        c, objective, sums = _InTorch(graph, now).run(now, old_logprobs, advantages, mask)
        value = objective + c * torch.where(mask != 0, logprobs - now, 0.0)
        return -value.sum(), {"custom/tokens:sum": mask.sum(), **sums}

    loss.__name__ = f"trustclip_{name}"
    return loss


class _InTorch(fx.Interpreter):
    """Runs a graph of internal operations with the functions of torch that have their names."""

    def __init__(self, graph: fx.GraphModule, like: Any) -> None:
        super().__init__(graph)
        self.like = like

    def run_node(self, n: fx.Node) -> Any:
        """A constant becomes a call as well: a loss on the server may capture no tensor."""
        result = super().run_node(n)
        if n.op == "placeholder" or n.all_input_nodes or not isinstance(result, Tensor):
            return result
        return self.like.new_full((), result.item(), dtype=result.dtype)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if not isinstance(target, OpOverload):
            return target(*args, **kwargs)
        name = target.overloadpacket.__name__
        kept = {key: value for key, value in kwargs.items() if key not in _WHERE}
        if name == "copy":  # the numbers of the second in the shape of the first
            return args[1].expand_as(args[0])
        if name in _METHODS:
            return getattr(args[0], _METHODS[name])(*args[1:], **kept)
        if hasattr(Tensor, f"new_{name}"):  # on the device of the data, whichever that is
            return getattr(self.like, f"new_{name}")(*args, **kept)
        for public in (name, f"{name}_copy"):
            if hasattr(torch, public):
                return getattr(torch, public)(*args, **kept)
        if not hasattr(Tensor, name):
            raise ValueError(f"torch has no public function for {target}")
        return getattr(args[0], name)(*args[1:], **kept)


#: Methods of a tensor in the place of internal operations, and arguments that name a device.
_METHODS = {**{"_to_copy": "to", "alias": "clone", "lift_fresh_copy": "clone", "sym_size": "size"}}
_WHERE = ("device", "layout", "memory_format", "pin_memory")


def _agrees(method: Method, traced: fx.GraphModule, length: int) -> bool:
    """Whether the traced loss has the gradient of the method on random tokens with a gap."""
    random = torch.Generator().manual_seed(length)
    old = -3 * torch.rand(length, generator=random)
    logp = (old + 0.3 * torch.randn(length, generator=random)).clamp(max=0).requires_grad_()
    advantages = torch.randn(length, generator=random)
    inputs = (old, advantages, (torch.arange(length) % 5 != 3).float())
    (got,) = torch.autograd.grad(-traced(logp, *inputs)[0], logp)
    want = gradient(method, _of_one(logp, *inputs))[0][0]
    return torch.allclose(got, want, rtol=1e-4, atol=1e-6, equal_nan=True)
