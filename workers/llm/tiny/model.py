"""A small Llama in torch: for training, whole sequences at once; for sampling, a token a row with keys and values kept.

Shapes: B rows, T tokens, V vocabulary, H heads, D width of a head, L layers, W width.

Parameters have the names that Hugging Face gives them, so a checkpoint is one that vLLM serves, too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from workers.llm.tiny.config import TinyConfig

INITIAL = 0.06
"""Standard deviation of random weights: at this width it keeps the scale of what goes through a layer."""


class KeyValues:
    """Keys and values of up to `rows` sequences; the first `n` rows are in use.

    A row that ends gives its place to the last one, so that the rows in use stay together.
    """

    def __init__(self, config: TinyConfig, rows: int) -> None:
        self.keys = torch.zeros(config.layers, rows, config.heads, config.max_len, config.head_width)
        """float32, [L, rows, H, max_len, D]."""
        self.values = torch.zeros_like(self.keys)
        self.lengths = torch.zeros(rows, dtype=torch.long)
        """Tokens of each row that are kept."""
        self.n = 0

    def remove(self, row: int) -> None:
        """Frees a row; the last one has its number then."""
        last = self.n - 1
        if row != last:
            length = int(self.lengths[last])
            self.keys[:, row, :, :length] = self.keys[:, last, :, :length]
            self.values[:, row, :, :length] = self.values[:, last, :, :length]
            self.lengths[row] = length
        self.n = last


class _Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight, self._eps)


class _Attention(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self._heads, self._head_width = config.heads, config.head_width
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(config.width, config.width, bias=False) for _ in range(4))

    def split(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of x [B, T, W], each [B, H, T, D]; the first two turned by their positions."""
        parts = [
            project(x).view(x.shape[0], x.shape[1], self._heads, self._head_width).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        ]
        return _turned(parts[0], turn), _turned(parts[1], turn), parts[2]

    def join(self, mixed: Tensor) -> Tensor:
        """[B, H, T, D] to [B, T, W]."""
        return self.o_proj(mixed.transpose(1, 2).reshape(mixed.shape[0], mixed.shape[2], -1))


class _FeedForward(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.hidden, bias=False)
        self.up_proj = nn.Linear(config.width, config.hidden, bias=False)
        self.down_proj = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.input_layernorm = _Norm(config.width, config.norm_eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = _Norm(config.width, config.norm_eps)
        self.mlp = _FeedForward(config)


class _Stack(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        self.norm = _Norm(config.width, config.norm_eps)


class TinyLM(nn.Module):
    """The model. Weights are random until they are loaded."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.model = _Stack(config)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # what adds to the residual stream begins smaller, by how often that happens
                deep = (2 * config.layers) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                nn.init.normal_(parameter, std=INITIAL * deep)
        speeds = config.rope_theta ** -(torch.arange(0, config.head_width, 2) / config.head_width)
        angles = torch.outer(torch.arange(config.max_len), speeds).repeat(1, 2)
        self._cos, self._sin = angles.cos(), angles.sin()

    def forward(self, ids: Tensor, at: Tensor | None = None) -> Tensor:
        """Logits of whole sequences.

        Args:
            ids: int64, [B, T], padded on the right with anything.
            at: bool, [B, T]: the places whose next token is asked for; None = all.

        Returns:
            float32: of the token that follows each place, [N, V] for N places in order of rows, [B, T, V] for all.
        """
        x = self._whole(ids, None)
        return self._logits(x if at is None else x[at])

    def begin(self, kept: KeyValues, prompts: list[list[int]]) -> Tensor:
        """Takes new rows, behind those in use; logits of the token that follows each prompt, [len(prompts), V]."""
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        ids = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
        hidden = self._whole(ids, kept)
        kept.lengths[kept.n : kept.n + len(prompts)] = lengths
        kept.n += len(prompts)
        return self._logits(hidden[torch.arange(len(prompts)), lengths - 1])

    def go_on(self, kept: KeyValues, ids: Tensor) -> Tensor:
        """One more token of each row in use; logits of the one after it.

        Args:
            ids: int64, [n].

        Returns:
            float32, [n, V].
        """
        rows, places = torch.arange(kept.n), kept.lengths[: kept.n].clone()
        longest = int(places.max()) + 1
        turn = (self._cos[places][:, None, None], self._sin[places][:, None, None])
        hides = (torch.arange(longest)[None] > places[:, None])[:, None, None]
        x = self.model.embed_tokens(ids)[:, None]
        for number, layer in enumerate(self.model.layers):
            query, key, value = layer.self_attn.split(layer.input_layernorm(x), turn)
            keys, values = kept.keys[number], kept.values[number]
            keys[rows, :, places], values[rows, :, places] = key[:, :, 0], value[:, :, 0]
            scores = query @ keys[: kept.n, :, :longest].transpose(-1, -2) * self.config.head_width**-0.5
            mixed = scores.masked_fill(hides, -torch.inf).softmax(-1) @ values[: kept.n, :, :longest]
            x = x + layer.self_attn.join(mixed)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        kept.lengths[: kept.n] += 1
        return self._logits(x[:, 0])

    def _whole(self, ids: Tensor, kept: KeyValues | None) -> Tensor:
        """[B, T] to [B, T, W]; keys and values go behind the rows in use."""
        length = ids.shape[1]
        turn = (self._cos[:length], self._sin[:length])
        x = self.model.embed_tokens(ids)
        for number, layer in enumerate(self.model.layers):
            query, key, value = layer.self_attn.split(layer.input_layernorm(x), turn)
            if kept is not None:
                rows = slice(kept.n, kept.n + ids.shape[0])
                kept.keys[number, rows, :, :length], kept.values[number, rows, :, :length] = key, value
            x = x + layer.self_attn.join(functional.scaled_dot_product_attention(query, key, value, is_causal=True))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return x

    def _logits(self, x: Tensor) -> Tensor:
        return functional.linear(self.model.norm(x), self.model.embed_tokens.weight)


def _turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Each half of a head's width turned against the other, by the place of the token."""
    cos, sin = turn
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin
