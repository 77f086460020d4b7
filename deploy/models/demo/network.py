"""The network: the Llama layout, with the tensor names of transformers. Its rows are packed (packing.py)."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

LENGTH, VOCAB = 4096, 4096


@dataclass
class Shape:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    head_dim: int = 64


SHAPES = {"model": Shape(384, 8, 6, 2, 1024), "draft": Shape(192, 3, 3, 1, 448)}
TINY = {"model": Shape(64, 2, 1, 1, 128), "draft": Shape(64, 1, 1, 1, 64)}


class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), 1e-5).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.s = s
        self.q_proj = nn.Linear(s.hidden, s.heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)

    def forward(self, x, cos, sin, mask):
        b, t, _ = x.shape
        split = lambda y: y.view(b, t, -1, self.s.head_dim).transpose(1, 2)
        q, k, v = (
            rotate(split(self.q_proj(x)), cos, sin),
            rotate(split(self.k_proj(x)), cos, sin),
            split(self.v_proj(x)),
        )
        return self.o_proj(attend(q, k, v, mask).transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden, s.inner, bias=False)
        self.up_proj = nn.Linear(s.hidden, s.inner, bias=False)
        self.down_proj = nn.Linear(s.inner, s.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(s.hidden), Norm(s.hidden)
        self.self_attn, self.mlp = Attention(s), MLP(s)

    def forward(self, x, cos, sin, mask):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.s = s
        self.embed_tokens = nn.Embedding(VOCAB, s.hidden)
        self.layers = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = Norm(s.hidden)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(
                    p, std=0.02 / ((2 * s.layers) ** 0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1)
                )

    def forward(self, ids, pos, mask):
        freq = 10000.0 ** (-torch.arange(0, self.s.head_dim, 2, device=ids.device).float() / self.s.head_dim)
        angle = (pos.float()[:, None, :, None] * freq).repeat(1, 1, 1, 2)
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, angle.cos(), angle.sin(), mask)
        return F.linear(self.norm(x), self.embed_tokens.weight)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return (x * cos + turned * sin).to(x.dtype)


def attend(q, k, v, mask):
    if isinstance(mask, torch.Tensor):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)


def attention_mask(seg, flex: bool):
    """Mask of packed rows: causal, within one dialogue, plus the system turn (segment 0)."""

    def visible(b, h, q, k):
        return (q >= k) & ((seg[b, q] == seg[b, k]) | (seg[b, k] == 0))

    n, t = seg.shape
    if flex:
        return create_block_mask(visible, n, None, t, t, device=seg.device, _compile=True)
    i = torch.arange(t, device=seg.device)
    return visible(torch.arange(n, device=seg.device)[:, None, None], None, i[:, None], i[None, :])[:, None]
