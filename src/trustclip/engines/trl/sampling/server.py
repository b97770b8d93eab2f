"""Sampling by a server that takes the policy's weights before each generation, or keeps its own."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from trustclip.engines.served import ServedSampler, complaints
from trustclip.engines.trl.config import ConstrainedGRPOConfig
from trustclip.engines.trl.upstream import end_tokens


class Following:
    """The server of a trainer with ``server`` set, whose construction by TRL is complete.

    The weights go through a file in the output folder, removed once the server has read it.
    Seeds are drawn from PyTorch's random numbers, whose state checkpoints hold. A server that lacks
    something, or does not answer as it should, is a ValueError.
    """

    def __init__(self, trainer: Any) -> None:
        args: ConstrainedGRPOConfig = trainer.args
        self._trainer, self._reloads = trainer, args.server == "reload"
        self.recount()
        sampling = {name: getattr(args, name) for name in ("temperature", "top_p", "top_k")}
        url, length, ends = args.server_url, trainer.max_completion_length, end_tokens(trainer)
        self._sampler = ServedSampler(url, length, ends, sampling | {"min_p": args.min_p or 0.0})
        plain = not [*args.cut_off()] and args.temperature == 1
        if trainer.accelerator.is_main_process:
            words = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
            for text in complaints(self._sampler, args.server, words, plain=plain):
                raise ValueError(text)

    def recount(self) -> None:
        """Forget which weights the server has: another training begins."""
        self._version: int | None = None if self._reloads else 0

    def sample(self, prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]], int]:
        """Ids of one completion of each prompt, their log-probabilities, and the weights' age."""
        step = self._trainer.state.global_step
        if self._reloads and self._version != step:
            self._send()
            self._version = step
        seeds = torch.randint(2**31, (len(prompts),)).tolist()
        ids, logps = self._sampler.complete(prompts, seeds)
        return ids, logps, step - (self._version or 0)

    def _send(self) -> None:
        accelerator = self._trainer.accelerator
        if accelerator.is_main_process:
            weights = merged(accelerator.unwrap_model(self._trainer.model))
            place = Path(self._trainer.args.output_dir).resolve()
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="weights-", dir=place) as folder:
                save_file(weights, Path(folder) / "model.safetensors", {"format": "pt"})
                Path(folder).chmod(0o755)  # the server may run as somebody else
                self._sampler.take(Path(folder))
        accelerator.wait_for_everyone()


@torch.no_grad()
def merged(model: Any) -> dict[str, Tensor]:
    """Copies of the weights by the base model's names, the active adapters added to them.

    The model does not change by a bit: weights are put back, since subtracting an adapter would
    round. Tied weights are listed once.
    """
    if not hasattr(model, "peft_config"):
        return {name: p.detach().cpu().clone() for name, p in model.named_parameters()}
    from peft.tuners.tuners_utils import BaseTunerLayer

    tensors: dict[str, Tensor] = {}
    layers = ((p, layer) for p, layer in model.named_modules() if isinstance(layer, BaseTunerLayer))
    layer: Any
    for path, layer in layers:
        base = layer.get_base_layer()
        original = base.weight.detach().clone()
        layer.merge()
        tensors[f"{path}.weight"] = base.weight.detach().cpu().clone()
        layer.unmerge()
        base.weight.copy_(original)
    for name, parameter in model.named_parameters():
        plain = name.replace(".base_layer", "").replace(".modules_to_save.default", "")
        if model.prefix not in name and ".original_module" not in name:
            tensors.setdefault(plain, parameter.detach().cpu().clone())
    return {name.removeprefix("base_model.model."): tensor for name, tensor in tensors.items()}
