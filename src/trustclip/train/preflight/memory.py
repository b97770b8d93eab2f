"""Peak memory of training, estimated from the shape of the model alone.

Weights, adapters and what autograd keeps for the backward pass are not counted by formulas of one
architecture: the model is built and run forward on PyTorch's meta device, where tensors have shapes
and no contents, and the tensors kept are added up. The rest is arithmetic on TRL's loop.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from trustclip.constraints.candidates import DEFAULT
from trustclip.head.exact import CHUNK_LOGITS
from trustclip.head.product import TILE_LOGITS
from trustclip.train.settings.stages import Dtype, RLStage, SFTStage, Training

#: Tile of logits that TRL's output head works on: tokens and vocabulary entries.
TILE = 4096, 32768
#: Copies of a tile alive at once in its backward pass in plain PyTorch; Triton works in place.
CPU_TILES = 8
#: Tensors of a layer's largest size alive at once in addition to those kept for backward.
WORKING = 4
#: Copies of a step's logits alive at once while sampling, in float32.
SAMPLING = 4
#: Share of the sum that the allocator loses to fragmentation; bytes of CUDA's own context.
FRAGMENTATION, CONTEXT = 0.1, 600 << 20

#: On a CPU: Python with PyTorch, Transformers and TRL, and what its allocator keeps between stages.
LIBRARIES = 800 << 20
#: Copies of a batch's logits alive at once in fine-tuning, in float32: they, their log-softmax, and
#: their gradient.
TUNING = 3

PHASES = ("generation", "backward", "step")


@dataclass(frozen=True)
class Part:
    """One share of the memory: bytes, and the phases in which they are needed."""

    name: str
    size: int
    phases: tuple[str, ...] = PHASES


@dataclass(frozen=True)
class Memory:
    """Estimate of the memory of training on one device."""

    parts: tuple[Part, ...]

    def of(self, phase: str) -> int:
        """Bytes needed in a phase of `PHASES`."""
        return sum(part.size for part in self.parts if phase in part.phases)

    @property
    def phase(self) -> str:
        """The phase that needs the most memory."""
        return max(PHASES, key=self.of)

    @property
    def peak(self) -> int:
        """Bytes needed in it."""
        return self.of(self.phase)


@dataclass(frozen=True)
class Footprint:
    """Sizes of a model and a batch, computed on the meta device, in bytes."""

    width: int  # of one number of the model
    weights: int  # of the model as loaded
    adapters: int  # added by LoRA
    trained: int  # of all trained weights
    head: int  # of the output head, if it is trained, else 0
    kept: int  # what one forward pass keeps for the backward pass
    largest: int  # the largest single tensor kept


def estimate(
    model_config: Any,
    settings: RLStage,
    prompt_length: int,
    device: str = "cuda",
    dtype: Dtype = "auto",
) -> Memory:
    """Peak memory of reinforcement learning on one device, every completion at its longest.

    Covered: one process that holds the whole model (no FSDP, DeepSpeed or quantisation), AdamW,
    TRL's own generation, memory as PyTorch's allocator counts it plus a reserve. Not covered:
    vLLM's part of the device, buffers for several ranks, the reward functions, and on a CPU the
    libraries themselves. Validated against measurements on a CPU only.

    Args:
      model_config: configuration of a Hugging Face causal language model.
      settings: of the training.
      prompt_length: of the longest prompt, tokens.
      device: ``"cuda"`` (weights in bfloat16) or ``"cpu"`` (float32), as `load_model` loads them.
      dtype: of the weights, where it is another one.

    Raises:
      ValueError: the architecture cannot be run on the meta device.

    Example:
      >>> from transformers import Qwen3Config
      >>> small = Qwen3Config(vocab_size=1000, hidden_size=64, intermediate_size=192,
      ...     num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
      >>> stage = RLStage(dataset="arithmetic", max_completion_length=100, lora_r=0)
      >>> memory = estimate(small, stage, prompt_length=20, device="cpu")
      >>> [part.size for part in memory.parts if part.name == "weights"]  # 4 bytes each
      [907008]
    """
    text = model_config.get_text_config()
    batch = settings.per_device_train_batch_size
    length = prompt_length + settings.max_completion_length
    sizes = footprint(model_config, settings, batch, length, device, dtype)
    samples = settings.samples
    before_step, layers = ("backward", "step"), text.num_hidden_layers
    kept = sizes.kept
    if settings.gradient_checkpointing:
        kept = layers * batch * length * text.hidden_size * sizes.width + sizes.kept // layers
    head = _head(text, settings, sizes, prompt_length, device)
    # Gradients of other micro-batches are there from the start; else they replace what was kept.
    accumulates = settings.gradient_accumulation_steps > 1
    parts = [
        Part("weights", sizes.weights),
        Part("LoRA adapters", sizes.adapters),
        Part("reference model", sizes.weights if settings.beta and not settings.lora_r else 0),
        Part("optimizer", 2 * sizes.trained),
        Part("average of the weights", _average(settings, sizes)),
        Part("gradients", sizes.trained, before_step if accumulates else ("step",)),
        Part("activations", kept + WORKING * sizes.largest, ("backward",)),
        Part("output head", head, ("backward",)),
        Part("rollout buffer", 48 * samples * length),
        *_exact_kl(text, settings, sizes, (samples, length), device, head),
        *_candidates(text, settings, samples),
        *_generation(text, settings, sizes, samples, prompt_length),
    ]
    whole = Memory(tuple(parts)).peak
    driver = CONTEXT if device == "cuda" else 0
    parts.append(Part("reserve", int(FRAGMENTATION * whole) + driver))
    return Memory(tuple(part for part in parts if part.size))


def tuning(
    model_config: Any,
    settings: SFTStage,
    length: int,
    device: str = "cuda",
    dtype: Dtype = "auto",
) -> int:
    """Peak memory of fine-tuning on one device, in bytes, as `estimate` has that of RL.

    ``length`` is that of the longest prompt with its solution, in tokens.
    """
    batch, length = settings.per_device_train_batch_size, min(length, settings.max_length)
    sizes = footprint(model_config, settings, batch, length, device, dtype)
    logits = 4 * TUNING * batch * length * model_config.get_text_config().vocab_size
    backward = sizes.kept + WORKING * sizes.largest + logits
    # Gradients replace what was kept, or are there from the start.
    accumulates = settings.gradient_accumulation_steps > 1
    last = sizes.trained + backward if accumulates else max(sizes.trained, backward)
    whole = sizes.weights + sizes.adapters + 2 * sizes.trained + last
    return int((1 + FRAGMENTATION) * whole) + (CONTEXT if device == "cuda" else 0)


def _average(settings: RLStage, sizes: Footprint) -> int:
    """The average of the trained weights that a method is anchored at, in float32."""
    if "logp_average" not in settings.method.requires:
        return 0
    return sizes.trained * (1 if settings.lora_r else 4 // sizes.width)  # adapters are in float32


def _own_head(settings: RLStage, device: str) -> bool:
    """Whether trustclip's output head is used; see `trustclip.engines.trl.config`."""
    head = settings.trl.get("head", "auto")
    return head == "trustclip" or (head == "auto" and device == "cpu")


def _head(text: Any, settings: RLStage, sizes: Footprint, prompt: int, device: str) -> int:
    """Backward pass of the output head: tiles of logits, gradients in float32."""
    tokens = settings.per_device_train_batch_size * settings.max_completion_length
    if _own_head(settings, device):
        logits = tokens * text.vocab_size
        tile = min(TILE_LOGITS[device], logits)
        # On a GPU weights in half precision are alive with a tile of logits; on a CPU they are it.
        tiles = 4 * tile + 2 * tile if device == "cuda" else 4 * tile
    else:
        tokens += settings.per_device_train_batch_size * prompt
        rows, columns = min(tokens, TILE[0]), min(text.vocab_size, TILE[1])
        # On a GPU a tile's buffer counts in full, on a CPU only the part that is written.
        tiles = 2 * rows * TILE[1] if device == "cuda" else 4 * CPU_TILES * rows * columns
    gradients = 4 * tokens * text.hidden_size
    if sizes.head:
        gradients += 4 * text.vocab_size * text.hidden_size + sizes.head
    return tiles + gradients


def _exact_kl(
    text: Any, settings: RLStage, sizes: Footprint, samples: tuple[int, int], device: str, head: int
) -> list[Part]:
    """Tensors of the old policy kept for exact KL divergences, and their working memory."""
    needs = {n for n in settings.method.requires if n[:3] == "kl_"}
    if settings.trl.get("exact_kl_every"):
        needs.add("kl_old_new")
    if not needs:
        return []
    count, length = samples
    completion, state = settings.max_completion_length, text.hidden_size * sizes.width
    parts = [
        Part("old hidden states", count * completion * state),
        Part("hidden states being scored", count * length * state, ("generation",)),
    ]
    if _own_head(settings, device) and not sizes.head:  # computed from the results of both passes
        mean = 4 * text.hidden_size if "kl_old_new" in needs else 0
        return [*parts, Part("old log-partitions and means", count * completion * (8 + mean))]
    logits = settings.per_device_train_batch_size * completion * text.vocab_size
    return [
        *parts,
        Part("old output head", sizes.head),
        # Freed before the head's backward pass begins, which takes the same memory.
        Part("exact KL", max(0, 8 * min(CHUNK_LOGITS[device], logits) - head), ("backward",)),
    ]


def _candidates(text: Any, settings: RLStage, samples: int) -> list[Part]:
    """The sampler's likeliest tokens, or those it kept, and their working memory."""
    required = "candidates" in settings.method.requires
    k = DEFAULT * required if settings.candidates is None else settings.candidates
    if settings.replay:  # how many top-p keeps is known only while it samples
        k = settings.sampler.top_k or text.vocab_size
    if not k:
        return []
    k, length = min(k, text.vocab_size), settings.max_completion_length
    micro_batch = settings.per_device_train_batch_size * length * k
    return [
        Part("candidates", 12 * samples * length * k),
        # Log-probabilities, coefficients and their gradients in float32.
        Part("candidates being scored", 24 * micro_batch, ("backward",)),
    ]


def _generation(
    text: Any, settings: RLStage, sizes: Footprint, samples: int, prompt: int
) -> list[Part]:
    """Generation by TRL with Transformers: all samples of a generation at once."""
    if settings.use_vllm or settings.server != "none":
        return []
    heads = text.num_attention_heads
    shared = getattr(text, "num_key_value_heads", None) or heads
    dimension = getattr(text, "head_dim", None) or text.hidden_size // heads
    length = prompt + settings.max_completion_length
    layer = 2 * shared * dimension * samples * length * sizes.width
    # A layer's keys and values are copied when a token is appended, and once per query head used.
    copies = layer * (1 + (heads // shared if heads != shared else 0))
    tokens = settings.per_device_train_batch_size * length
    prefill = (
        WORKING * sizes.largest * samples * prompt // tokens
        + samples * prompt * length * sizes.width
    )
    return [
        Part("KV cache", layer * text.num_hidden_layers + copies, ("generation",)),
        Part("sampling", 4 * SAMPLING * samples * text.vocab_size, ("generation",)),
        Part("prompts", prefill, ("generation",)),
    ]


def footprint(
    model_config: Any,
    settings: Training,
    batch: int,
    length: int,
    device: str,
    precision: Dtype = "auto",
) -> Footprint:
    """Build the model on the meta device and run a batch of sequences through it.

    Raises:
      ValueError: the architecture cannot be run on the meta device.
    """
    from transformers import AutoModelForCausalLM

    from trustclip.train.configs import lora_config

    usual = "bfloat16" if device == "cuda" else "float32"
    dtype: torch.dtype = getattr(torch, usual if precision == "auto" else precision)
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(model_config, dtype=dtype)
            weights = _bytes(model.parameters())
            head = model.get_output_embeddings().weight
            lora = lora_config(settings.lora_r, settings.lora_alpha, settings.lora)
            if lora is not None:
                from peft import get_peft_model

                model = get_peft_model(model, lora).get_base_model()
            ids = torch.zeros(batch, length, dtype=torch.long)
            mask = torch.ones(batch, 1, length, length, dtype=torch.bool)
            model.train()
            with _MetaEmulation(dtype):
                kept = _saved_bytes(
                    model, lambda: model.base_model(ids, attention_mask=mask, use_cache=False)
                )
    except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"no estimate for the architecture {model_config.model_type!r}: {error}"
        ) from error
    trained = [p for p in model.parameters() if p.requires_grad]
    return Footprint(
        width=dtype.itemsize,
        weights=weights,
        adapters=_bytes(model.parameters()) - weights,
        trained=_bytes(trained),
        head=_bytes([head]) if head.requires_grad else 0,
        kept=sum(kept.values()),
        largest=max(kept.values()),
    )


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _saved_bytes(model: torch.nn.Module, run: Callable[[], Any]) -> Mapping[int, int]:
    """Bytes of every storage, except the model's own, that autograd saves while ``run`` runs."""
    own = {t.untyped_storage()._cdata for t in [*model.parameters(), *model.buffers()]}
    sizes: dict[int, int] = {}
    alive: list[Any] = []  # so that no address is reused while it identifies a storage

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own and storage._cdata not in sizes:
            sizes[storage._cdata] = storage.nbytes()
            alive.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sizes


class _MetaEmulation(TorchFunctionMode):
    """Emulates what the meta device lacks: mixed precision, and fused attention."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.linear:
            args = [x if x is None else x.to(self._dtype) for x in args]
        if func is functional.scaled_dot_product_attention:
            return _Attention.apply(*args[:3], kwargs.get("attn_mask"))
        return func(*args, **kwargs)


class _Attention(torch.autograd.Function):
    """Keeps what a fused attention keeps: inputs, mask, output and the normaliser of each row."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        batch, heads, length, _ = query.shape  # [batch, heads, time, head dimension]
        output = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
        normaliser = query.new_empty(batch, heads, length, dtype=torch.float32)
        bias = None if mask is None else mask.to(query.dtype)
        ctx.save_for_backward(query, key, value, bias, output, normaliser)
        return output

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("shapes have no gradients.")
