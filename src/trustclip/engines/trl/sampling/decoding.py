"""Fast sampling on a CPU, where `generate` costs more than a small model itself.

`generate` of Transformers prepares, concatenates and checks anew for every token. This loop
allocates its key-value cache once, reads a prompt once however many completions it gets, and lets
finished rows leave the batch. It knows one architecture, `llama` beside it: Llama, Mistral, Qwen2
and Qwen3, with LoRA merged into a copy.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trustclip.engines.trl.additions import addition
from trustclip.engines.trl.sampling.llama import merged, unlike_llama
from trustclip.engines.trl.scoring.candidates import Likeliest, join, likeliest
from trustclip.engines.trl.scoring.hidden import language_model

#: Share of finished rows at which the batch is packed: less often than one by one, since packing
#: copies the cache.
_PACK = 0.1

#: Vocabulary from which one random number a row is drawn. `multinomial` draws one for each token,
#: a fifth of the time at 49,152; with few tokens it costs nothing, and its draws are on record.
_MANY = 8192

#: Numbers in a matrix from which it is packed: the products of small ones gain nothing by it.
_LARGE = 1 << 18


@dataclass(frozen=True)
class Decoded:
    """One sampled completion."""

    tokens: list[int]  # the end mark included
    logps: list[float]  # under the distribution that each was drawn from, nats
    likeliest: Likeliest | None = None  # of each of these distributions, if requested


def unsupported(model: Any) -> str | None:
    """The reason why `Decoder` cannot reproduce this model; None if it can."""
    if reason := unlike_llama(model):
        return f"the decoder supports the Llama family only, and {reason}"
    if reason := addition(model):
        return f"the decoder computes with the weights alone, and {reason}"
    config: Any = language_model(model).config
    if model.training and config.attention_dropout:
        return "the decoder has no dropout"
    weights = list(language_model(model).model.embed_tokens.parameters())
    weights += [p for p in model.parameters() if p.dim() > 1]
    if any(p.device.type != "cpu" for p in weights):
        return "the decoder supports only a CPU"
    if any(p.dtype not in (torch.float32, torch.bfloat16) for p in weights):
        return "the decoder supports only float32 and bfloat16 weights"
    return None


class Decoder:
    """Batched decoding with a model of the Llama family and its current weights, LoRA merged.

    Args:
      model: one that is not `unsupported`.
      dtype: of weights and products; that of the embedding when None.
      likeliest: how many of the likeliest tokens to report at each position.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: Any,
        dtype: torch.dtype | None = None,
        likeliest: int = 0,
    ) -> None:
        self._likeliest = likeliest
        inner = language_model(model)
        config, parameters = inner.config, merged(model)
        self.dtype = dtype or parameters["model.embed_tokens.weight"].dtype
        # Tied weights are converted once.
        copies = {id(weight): weight.to(self.dtype) for weight in parameters.values()}
        parameters = {name: copies[id(weight)] for name, weight in parameters.items()}
        del copies  # the layers take their weights out of the other dictionary
        heads = config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        self._heads = heads, config.num_key_value_heads, width
        self._eps = config.rms_norm_eps
        self._embedding = parameters["model.embed_tokens.weight"]
        self._last_norm = parameters["model.norm.weight"]
        self._head = _product(parameters["lm_head.weight"])
        self._frequencies = inner.model.rotary_emb.inv_freq.float()
        layers = range(config.num_hidden_layers)
        self._layers = [_Layer.of(parameters, f"model.layers.{i}") for i in layers]

    @torch.no_grad()
    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        limit: int,
        ends: Collection[int],
        temperature: float = 1.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[Decoded]:
        """Sample one completion per prompt; equal prompts are processed once.

        Args:
          prompts: token ids, none empty.
          limit: longest completion, tokens.
          ends: ids that end a completion.
          temperature: 0 takes the likeliest token, and reports its log-probability at 1.
          stop: asked after each token; True ends all completions there.

        Returns:
          In the order of the prompts. Drawn from torch's global random state.
        """
        distinct = list(dict.fromkeys(map(tuple, prompts)))
        place = {prompt: i for i, prompt in enumerate(distinct)}
        source = torch.tensor([place[tuple(prompt)] for prompt in prompts])
        cache, last = self._read(distinct, limit)
        batch = _Batch(cache.rows(source), last[source], limit, torch.tensor(sorted(ends)))
        while batch.running:
            logps = self._head(batch.last).float()  # [rows, vocabulary]
            logps = (logps / (temperature or 1.0)).log_softmax(dim=-1)
            # [rows, 1]
            tokens = _draw(logps) if temperature else logps.argmax(-1, keepdim=True)
            further = likeliest(logps, self._likeliest) if self._likeliest else None
            batch.take(tokens, logps.gather(1, tokens).squeeze(1), further)
            if stop():
                break
            if batch.running:
                batch.last = self._states(tokens[batch.kept], batch.cache)[:, -1]
        return batch.decoded()

    def _read(self, prompts: Sequence[tuple[int, ...]], limit: int) -> "tuple[_Cache, Tensor]":
        """Cache and last state of every prompt, with room for ``limit`` more tokens."""
        ids = pad_sequence([*map(torch.tensor, prompts)], True, padding_side="left")
        longest = ids.shape[1]
        padding = torch.tensor([longest - len(prompt) for prompt in prompts])  # [rows]
        _, groups, width = self._heads
        shape = (len(self._layers), 2, len(prompts), groups, longest + limit, width)
        cache = _Cache(torch.zeros(shape, dtype=self.dtype), padding, 0)
        return cache, self._states(ids, cache)[:, -1]

    def _states(self, ids: Tensor, cache: "_Cache") -> Tensor:
        """Last hidden states of new tokens, added to the cache. Shape [rows, tokens, hidden]."""
        x = F.embedding(ids, self._embedding)  # [rows, tokens, hidden]
        cos, sin = cache.turn(ids.shape[1], self._frequencies)
        turn, mask = (cos.to(self.dtype), sin.to(self.dtype)), cache.mask(ids.shape[1])
        for layer, memory in zip(self._layers, cache.memory, strict=True):
            x = x + self._attention(layer, self._norm(x, layer.before), memory, cache, turn, mask)
            gate, up = layer.gate_up(self._norm(x, layer.after)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
        cache.length += ids.shape[1]
        return self._norm(x, self._last_norm)

    def _attention(
        self,
        layer: "_Layer",
        x: Tensor,
        memory: Tensor,
        cache: "_Cache",
        turn: tuple[Tensor, Tensor],
        mask: Tensor | None,
    ) -> Tensor:
        rows, tokens, _ = x.shape
        queries, groups, width = self._heads
        # [rows, queries + 2 groups, tokens, width]
        mixed = layer.qkv(x).view(rows, tokens, -1, width).transpose(1, 2)
        both, v = mixed.split([queries + groups, groups], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = both.split([queries, groups], dim=1)
            both = torch.cat([self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)], dim=1)
        q, k = _rotate(both, turn).split([queries, groups], dim=1)
        end = cache.length + tokens
        memory[0][:, :, cache.length : end] = k
        memory[1][:, :, cache.length : end] = v
        keys, values = memory[0][:, :, :end], memory[1][:, :, :end]  # [rows, groups, end, width]
        if tokens == 1:  # the queries of a group are as many positions, so that no key is repeated
            q = q.reshape(rows, groups, queries // groups, width)
            y = F.scaled_dot_product_attention(q, keys, values, mask)
            return layer.out(y.reshape(rows, 1, -1))
        causal = mask is None
        y = F.scaled_dot_product_attention(q, keys, values, mask, is_causal=causal, enable_gqa=True)
        return layer.out(y.transpose(1, 2).reshape(rows, tokens, -1))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self._eps)


def _draw(logps: Tensor) -> Tensor:
    """A token of each row. Shape [rows, 1]."""
    mass = logps.exp()
    if logps.shape[1] < _MANY:
        return mass.multinomial(1)
    # float64: a float32 sum over a large vocabulary would round its tail away.
    mass = mass.cumsum(dim=-1, dtype=torch.float64)
    point = torch.rand(len(mass), 1, dtype=torch.float64) * mass[:, -1:]
    return torch.searchsorted(mass, point, right=True).clamp(max=mass.shape[1] - 1)


#: The product of states [..., in] with a weight: [..., out].
_Product = Callable[[Tensor], Tensor]


def _product(weight: Tensor, bias: Tensor | None = None) -> _Product:
    """$x W^T + b$; oneDNN packs a large weight once, which halves the time of a few rows."""
    mkldnn, x86 = torch.ops.mkldnn, torch.backends.cpu.get_cpu_capability().startswith("AVX")
    packs = weight.numel() >= _LARGE and x86 and torch.backends.mkldnn.is_available()
    if not packs or (weight.dtype != torch.float32 and not mkldnn._is_mkldnn_bf16_supported()):
        return partial(F.linear, weight=weight, bias=bias)
    packed = mkldnn._reorder_linear_weight(weight)
    return lambda x: mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


@dataclass(frozen=True)
class _Layer:
    """Products and norms of a block; weights with the same input are one matrix."""

    qkv: _Product
    out: _Product
    q_norm: Tensor | None
    k_norm: Tensor | None
    gate_up: _Product
    down: _Product
    before: Tensor
    after: Tensor

    @classmethod
    def of(cls, weights: dict[str, Tensor], block: str) -> "_Layer":
        def of(name: str) -> Tensor:
            return weights.pop(f"{block}.{name}.weight")

        biases = [weights.get(f"{block}.self_attn.{name}_proj.bias") for name in "qkv"]
        bias = None if biases[0] is None else torch.cat(biases)  # type: ignore[arg-type]
        return cls(
            qkv=_product(torch.cat([of(f"self_attn.{name}_proj") for name in "qkv"]), bias),
            out=_product(of("self_attn.o_proj")),
            q_norm=weights.get(f"{block}.self_attn.q_norm.weight"),
            k_norm=weights.get(f"{block}.self_attn.k_norm.weight"),
            gate_up=_product(torch.cat([of("mlp.gate_proj"), of("mlp.up_proj")])),
            down=_product(of("mlp.down_proj")),
            before=of("input_layernorm"),
            after=of("post_attention_layernorm"),
        )


@dataclass
class _Cache:
    """Keys and values. ``memory``: [layers, 2, rows, groups, tokens, width]."""

    memory: Tensor
    padding: Tensor
    length: int

    def rows(self, index: Tensor) -> "_Cache":
        """The cache of the rows at ``index``, which may repeat."""
        return _Cache(self.memory[:, :, index], self.padding[index], self.length)

    def turn(self, tokens: int, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines of the rotary angles of new tokens, and their sines with the signs of `_rotate`.

        Both [rows or 1, 1, tokens, width].
        """
        # Without padding all rows share their positions, and one row of angles serves all.
        padding = self.padding if self.padding.any() else self.padding[:1]
        place = torch.arange(self.length, self.length + tokens) - padding[:, None]  # [rows, tokens]
        angle = place[:, None, :, None] * frequencies  # [rows, 1, tokens, width / 2]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)

    def mask(self, tokens: int) -> Tensor | None:
        """Which keys each new token attends to; None if no prompt is padded."""
        if not self.padding.any():
            return None
        end = self.length + tokens
        key, query = torch.arange(end), torch.arange(self.length, end)[:, None]
        own = (key >= self.padding[:, None, None]) | (key == query)  # padding sees itself: no NaN
        return (own & (key <= query))[:, None]  # [rows, 1, tokens, end]


class _Batch:
    """The rows still being generated; finished rows are removed from time to time."""

    def __init__(self, cache: _Cache, last: Tensor, limit: int, ends: Tensor) -> None:
        self.cache, self.last, self._ends = cache, last, ends
        rows = len(last)
        self._tokens = torch.zeros(rows, limit, dtype=torch.long)
        self._logps = torch.zeros(rows, limit)
        self._lengths = torch.zeros(rows, dtype=torch.long)
        self._rows = torch.arange(rows)
        self._alive = torch.ones(rows, dtype=torch.bool)
        self._time, self._limit = 0, limit
        # Likeliest tokens of each step, of the rows that were alive: [rows, ...].
        self._further: list[tuple[Tensor, Likeliest]] = []
        self.kept: Tensor | slice = slice(None)

    @property
    def running(self) -> bool:
        return self._time < self._limit and bool(self._alive.any())

    def take(self, tokens: Tensor, logps: Tensor, further: Likeliest | None) -> None:
        """Record one token per row; ``kept`` are the rows that continue."""
        rows, alive = self._rows[self._alive], self._alive
        self._tokens[rows, self._time] = tokens[alive, 0]
        self._logps[rows, self._time] = logps[alive]
        if further is not None:
            self._further.append((rows, Likeliest(*(part[alive] for part in further))))
        self._time += 1
        self._lengths[rows] = self._time
        self._alive = alive & ~torch.isin(tokens[:, 0], self._ends)
        self.kept = slice(None)
        if (~self._alive).float().mean() >= _PACK and self._alive.any():
            self.kept = self._alive.nonzero().squeeze(1)
            self.cache = self.cache.rows(self.kept)
            self._rows, self._alive = self._rows[self.kept], self._alive[self.kept]

    def decoded(self) -> list[Decoded]:
        tokens, logps, lengths = self._tokens.tolist(), self._logps.tolist(), self._lengths.tolist()
        further = self._likeliest(lengths)
        return [
            Decoded(row[:n], values[:n], more)
            for row, values, n, more in zip(tokens, logps, lengths, further, strict=True)
        ]

    def _likeliest(self, lengths: list[int]) -> list[Likeliest | None]:
        """The likeliest tokens of each completion, from those of each step."""
        if not self._further:
            return [None] * len(lengths)
        # Steps hold the living rows in ascending order: a stable sort by row restores the time.
        order = torch.cat([rows for rows, _ in self._further]).argsort(stable=True)
        whole = join([step for _, step in self._further])
        parts = zip(*(part[order].split(lengths) for part in whole), strict=True)
        return [Likeliest(*one) for one in parts]


def _rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding: of the halves (a, b) of each vector, (a c - b s, b c + a s)."""
    cos, sin = turn
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin
