# pyright: reportMissingImports=false
"""Sampling by `generate` of transformers in place of vLLM's and SGLang's servers."""

import asyncio
from collections.abc import Iterator
from typing import Any

import ray
import torch
from transformers import AutoModelForCausalLM
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput


def _name(rank: int) -> str:
    return f"hf_cpu_server_{rank}"


class Server:
    """One copy of the model, sampling one request at a time."""

    def __init__(self, path: str, response_length: int) -> None:
        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self._response_length = response_length
        self._step: int | None = None
        self._turn = asyncio.Lock()

    async def load_weights(self, weights: dict[str, torch.Tensor], step: int | None) -> list[str]:
        """Take over weights; returns the names that were not among them."""
        own = set(self._model.state_dict())
        self._model.load_state_dict({k: v for k, v in weights.items() if k in own}, strict=False)
        self._model.tie_weights()
        self._step = step
        return sorted(own - set(weights))

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        async with self._turn:
            temperature = float(sampling_params.get("temperature", 1.0))
            asked = sampling_params.get("max_tokens") or sampling_params.get("max_new_tokens")
            ids = torch.tensor([list(prompt_ids)])
            draw = {"do_sample": True, "temperature": temperature} if temperature > 0 else {}
            with torch.no_grad():
                output = self._model.generate(  # pyright: ignore[reportAttributeAccessIssue]
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=int(asked or self._response_length),
                    top_k=0,
                    top_p=1.0,
                    return_dict_in_generate=True,
                    output_logits=True,
                    **(draw or {"do_sample": False}),
                )
            tokens = output.sequences[0, ids.shape[1] :].tolist()
            logps = [
                torch.log_softmax(row[0].float() / (temperature or 1.0), -1)[token].item()
                for row, token in zip(output.logits, tokens, strict=True)
            ]
            return TokenOutput(
                token_ids=tokens,
                log_probs=logps,
                stop_reason="completed",
                extra_fields={"global_steps": self._step},
            )

    async def _nothing(self, *args: Any, **kwargs: Any) -> None:
        return None

    wake_up = sleep = abort_all_requests = resume_generation = _nothing
    clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = _nothing


class Replica(RolloutReplica):
    """One `Server` per worker."""

    async def launch_servers(self) -> None:
        server = (
            ray.remote(Server)
            .options(name=_name(self.replica_rank), num_cpus=0, max_concurrency=64)
            .remote(self.model_config["path"], self.config.response_length)
        )
        self.servers = [server]
        self._server_handle = server
        self._server_address = f"local-{self.replica_rank}"


class Adapter(BaseRollout):
    """Sends a worker's weights to its server after every step."""

    async def resume(self, tags: list[str]) -> None:
        return None

    async def release(self) -> None:
        return None

    async def update_weights(
        self,
        weights: Iterator[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_: Any,
    ) -> None:
        state = {name: tensor.detach().float().clone() for name, tensor in weights}
        rank = torch.distributed.get_rank()
        missing = await ray.get_actor(_name(rank)).load_weights.remote(state, global_steps)
        # A tied head is the embedding under a second name.
        if set(missing) - {"lm_head.weight"}:
            raise RuntimeError(f"weights that did not reach the sampler: {missing}")
