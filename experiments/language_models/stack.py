"""Small transformers that train side by side: one for each seed or setting, stacked along the first axis.

The models are so small that most of a step is the overhead of starting an operation, so twenty together cost
little more than one. All parameters of a model are one row of `flat`; the models share nothing, and the
gradient of a sum over them is the gradient of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.language_models import dialects

VOCABULARY = dialects.LETTERS + 1  # read: the letters and <bos>; written: the letters and <eos>
Past = list[tuple[Tensor, Tensor]]


class Stack:
    """Decoders with pre-normalised blocks; `width`, `layers` and `heads` are those of each."""

    def __init__(self, seeds: Sequence[int], width: int, layers: int, heads: int) -> None:
        self.width, self.layers, self.heads, self.size = width, layers, heads, len(seeds)
        w = width
        shapes: dict[str, tuple[int, ...]] = {"read": (VOCABULARY, w), "position": (dialects.LIMIT, w)}
        block = {"norm1": (1, w), "shift1": (1, w), "qkv": (w, 3 * w), "qkv_b": (1, 3 * w), "out": (w, w)}
        block |= {"out_b": (1, w), "norm2": (1, w), "shift2": (1, w), "up": (w, 4 * w), "up_b": (1, 4 * w)}
        block |= {"down": (4 * w, w), "down_b": (1, w)}
        for i in range(layers):
            shapes |= {f"{i}.{name}": shape for name, shape in block.items()}
        shapes |= {"norm": (1, w), "shift": (1, w), "write": (w, VOCABULARY), "write_b": (1, VOCABULARY)}
        self.shapes = shapes
        self.flat = torch.stack([self._initial(seed) for seed in seeds]).requires_grad_()

    def _initial(self, seed: int) -> Tensor:
        """Draw the parameters of one model: matrices with 1/sqrt(inputs), embeddings with 1 and 0.1."""
        rng = np.random.default_rng([seed, 11])
        rows = []
        for name, shape in self.shapes.items():
            kind = name.split(".")[-1]
            if kind.startswith("norm"):
                rows.append(np.ones(shape))
            elif kind.startswith("shift") or kind.endswith("_b"):
                rows.append(np.zeros(shape))
            else:
                scale = {"read": 1.0, "position": 0.1}.get(kind, 1 / math.sqrt(shape[0]))
                rows.append(scale * rng.standard_normal(shape))
        return torch.tensor(np.concatenate([r.ravel() for r in rows]), dtype=torch.float32)

    def views(self) -> dict[str, Tensor]:
        """Return the parameters by name, each of shape (models, ...)."""
        parts = self.flat.split([math.prod(s) for s in self.shapes.values()], dim=1)
        return {n: p.view(self.size, *s) for (n, s), p in zip(self.shapes.items(), parts, strict=True)}

    def _blocks(self, p: dict[str, Tensor], x: Tensor, past: Past | None, n: int) -> tuple[Tensor, Past]:
        """Run the blocks on x, shape (models, N n, width), with the keys and values of earlier positions."""
        S, w, h = self.size, self.width, self.heads
        kept: Past = []
        for i in range(self.layers):
            a = F.layer_norm(x, (w,)) * p[f"{i}.norm1"] + p[f"{i}.shift1"]
            qkv = torch.baddbmm(p[f"{i}.qkv_b"], a, p[f"{i}.qkv"]).view(S, -1, n, 3, h, w // h)
            q, k, v = qkv.permute(3, 0, 1, 4, 2, 5).flatten(1, 2)  # each (models N, heads, n, width / heads)
            if past is not None:
                k, v = torch.cat([past[i][0], k], 2), torch.cat([past[i][1], v], 2)
            kept.append((k, v))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
            a = a.transpose(1, 2).reshape(S, -1, w)
            x = x + torch.baddbmm(p[f"{i}.out_b"], a, p[f"{i}.out"])
            a = F.layer_norm(x, (w,)) * p[f"{i}.norm2"] + p[f"{i}.shift2"]
            a = torch.relu(torch.baddbmm(p[f"{i}.up_b"], a, p[f"{i}.up"]))
            x = x + torch.baddbmm(p[f"{i}.down_b"], a, p[f"{i}.down"])
        x = F.layer_norm(x, (w,)) * p["norm"] + p["shift"]
        return torch.baddbmm(p["write_b"], x, p["write"]), kept

    def _embed(self, p: dict[str, Tensor], letters: Tensor, first: int) -> Tensor:
        """Embed letters (models, N, n), from position `first` on."""
        offset = VOCABULARY * torch.arange(self.size)[:, None, None]
        x = F.embedding(letters + offset, p["read"].reshape(-1, self.width))
        return (x + p["position"][:, None, first : first + letters.shape[2]]).flatten(1, 2)

    def logits(self, letters: Tensor) -> Tensor:
        """Logits of shape (models, N, m + 1, 5) for letters of shape (models, N, m)."""
        p, S = self.views(), self.size
        bos = torch.full((*letters.shape[:2], 1), dialects.LETTERS)
        letters = torch.cat([bos, letters], 2)
        n = letters.shape[2]
        return self._blocks(p, self._embed(p, letters, 0), None, n)[0].view(S, -1, n, VOCABULARY)

    @torch.no_grad()
    def trees(self) -> np.ndarray:
        """Evaluate every model in every prefix: shape (models, 21845, 5)."""
        p, S, past = self.views(), self.size, None
        letters, levels = torch.full((S, 1, 1), dialects.LETTERS), []
        for d in range(dialects.LIMIT):
            z, kept = self._blocks(p, self._embed(p, letters, d), past if d else None, 1)
            levels.append(z)
            # Each of the four children has its parent's keys and values.
            past = [(k.repeat_interleave(4, 0), v.repeat_interleave(4, 0)) for k, v in kept]
            letters = torch.arange(4).repeat(4**d)[None, :, None].expand(S, -1, -1)
        return torch.cat(levels, 1).double().softmax(-1).numpy()

    @torch.no_grad()
    def write(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Let each model write sequences from uniform numbers of shape (models, N, 8); returns as `draw`."""
        p, past = self.views(), None
        letters = torch.full((*uniform.shape[:2], 1), dialects.LETTERS)

        def step(d: int, token: Tensor | None, row: Tensor) -> Tensor:
            nonlocal past, letters
            if token is not None:
                letters = token.clamp(max=dialects.LETTERS - 1)[..., None]
            z, past = self._blocks(p, self._embed(p, letters, d), past, 1)
            return z.softmax(-1).cumsum(-1)

        return roll(step, uniform)


def roll(step: Callable[[int, Tensor | None, Tensor], Tensor], uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Write sequences token by token, by inverting the cumulative distribution that `step` returns.

    Returns tokens and the rows of their prefixes, each (models, N, 8). After <eos>, token -100 and row 0.
    """
    on = torch.ones(uniform.shape[:2], dtype=torch.bool)
    row = torch.zeros(uniform.shape[:2], dtype=torch.long)
    token, tokens, rows = None, [], []
    for d in range(dialects.LIMIT):
        cumulative = step(d, token, row)
        token = (cumulative <= uniform[..., d, None] * cumulative[..., -1:]).sum(-1).clamp(max=dialects.EOS)
        tokens.append(torch.where(on, token, -100))
        rows.append(torch.where(on, row, 0))
        on = on & (token != dialects.EOS)
        row = torch.where(on, dialects.LETTERS * row + 1 + token, 0)
    return torch.stack(tokens, 2), torch.stack(rows, 2)


def draw(cumulative: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Draw from tables: `cumulative` is (models, 21845, 5), the tables' running sums over tokens."""
    model = torch.arange(len(cumulative))[:, None]
    return roll(lambda d, token, row: cumulative[model, row], uniform)


def adamw(
    flat: Tensor, gradient: Tensor, state: tuple[Tensor, Tensor], step: int, rate: Tensor, decay: Tensor
) -> None:
    """Update in place by AdamW (0.9, 0.999), with a learning rate and a weight decay for each model."""
    mean, square = state
    mean.lerp_(gradient, 0.1)
    square.lerp_(gradient.square(), 0.001)
    top = mean / (1 - 0.9**step)
    bottom = (square / (1 - 0.999**step)).sqrt_().add_(1e-8)
    flat.mul_(1 - (rate * decay)[:, None]).sub_(rate[:, None] * top / bottom)
