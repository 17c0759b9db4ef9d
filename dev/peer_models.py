"""peer_models.py - GPT-2, Llama and Qwen3 in plain PyTorch, of the dimensions of ./train's presets, for peer_torch.py.

A batch is tokens [B, T]. Without `documents` each row is one document. With them B is 1: the row holds documents one
behind another, positions start anew in each, and attention stays inside each.
"""
import dataclasses
import inspect
import math

import torch
import torch.nn.functional as F

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # PyTorch before 2.10
    varlen_attn = None


@dataclasses.dataclass
class Shape:
    """vocab is rounded up to a multiple of 64. scaling: Llama 3's factor, low, high, original context; or none."""
    arch: str = "gpt2"  # llama: RMSNorm, rotary positions, SwiGLU, no biases; qwen3: norms of queries and keys, too
    layers: int = 12
    width: int = 768
    heads: int = 12
    kv_heads: int = 12
    head_size: int = 64
    hidden: int = 3072
    context: int = 1024
    vocab: int = 50257
    theta: float = 1e4
    scaling: tuple = ()
    eps: float = 1e-5


PRESETS = {
    "gpt2-124m": Shape(),
    "llama-3.2-1b": Shape("llama", 16, 2048, 32, 8, 64, 8192, 4096, 128256, 5e5, (32, 1, 4, 8192)),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 16, 8, 128, 3072, 4096, 151936, 1e6, (), 1e-6),
}


def add_shape_options(parser, preset):
    parser.add_argument("--preset", choices=PRESETS, default=preset)
    for name in ["layers", "width", "heads", "kv-heads", "head-size", "hidden", "context", "vocab"]:
        parser.add_argument("--" + name, type=int)


def shape_of(o):
    """The preset's, with what options say. As in ./train another width or number of heads unsays the other ones."""
    preset, said = PRESETS[o.preset], {name: value for name, value in vars(o).items() if value is not None}
    shape = dataclasses.replace(preset, **{name: said[name] for name in dataclasses.asdict(preset) if name in said})
    if "width" in said or "heads" in said:
        hidden = 4 * shape.width if preset.arch == "gpt2" else -(-8 * shape.width // 192) * 64
        shape.kv_heads = said.get("kv_heads", shape.heads)
        shape.head_size = said.get("head_size", shape.width // shape.heads)
        shape.hidden = said.get("hidden", hidden)
    return shape


class Documents:
    """Of one row: lengths of its documents, where they start [n + 1] (int32), each token's position [T] in its own."""
    def __init__(self, lengths, device):
        self.lengths = lengths
        self.starts = torch.tensor([0] + lengths).cumsum(0).to(device, torch.int32)
        self.positions = torch.cat([torch.arange(n) for n in lengths]).to(device)


def attention_of_documents(device):
    """How it is computed on this PyTorch, for the line of results."""
    return "varlen_attn" if varlen_attn and device == "cuda" else "scaled_dot_product_attention of each document"


def full_attention(q, k, v):
    """q [B, T, NH, HS], k, v [B, T, NKV, HS]: causal, each row a document. Returns [B, T, NH, HS]."""
    group, T = q.shape[2] // k.shape[2], q.shape[1]
    if group > 1:
        k, v = (t.repeat_interleave(group, dim=2) for t in (k, v))
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    after = torch.triu(torch.ones(T, T, dtype=torch.bool, device=q.device), 1)
    scores = (q @ k.transpose(2, 3)) / math.sqrt(q.shape[3])
    return (torch.softmax(scores.masked_fill(after, -math.inf), dim=-1) @ v).transpose(1, 2)


def packed_attention(q, k, v, documents):
    """The same of one row, B = 1, inside each document."""
    if varlen_attn and q.is_cuda:
        known = inspect.signature(varlen_attn).parameters  # causal has two names, grouped heads are asked for or not
        causal = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
        grouped = {"enable_gqa": True} if "enable_gqa" in known else {}
        longest = max(documents.lengths)
        return varlen_attn(q[0], k[0], v[0], documents.starts, documents.starts, longest, longest, **causal,
                           **grouped)[None]
    parts = (t.split(documents.lengths, dim=1) for t in (q, k, v))
    return torch.cat([full_attention(*part) for part in zip(*parts)], dim=1)


class RmsNorm(torch.nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


def frequencies(shape):
    """Of rotary positions: theta^(-2 j / HS), j < HS / 2; with scaling long waves are stretched, as Llama 3.1 does."""
    j = torch.arange(0, shape.head_size, 2, dtype=torch.float64, device="cpu")
    f = shape.theta ** (-j / shape.head_size)
    if shape.scaling:
        factor, low, high, original = shape.scaling
        blend = ((original * f / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        f = f * (blend + (1 - blend) / factor)
    return f


def turn(x, turns):
    """x [B, T, heads, HS]; turns: cos and sin [T, 1, HS / 2]. Channel j turns with channel j + HS / 2."""
    cos, sin = turns
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


class Block(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s, C, gpt2, q, kv = s, s.width, s.arch == "gpt2", s.heads * s.head_size, s.kv_heads * s.head_size
        norm = torch.nn.LayerNorm if gpt2 else RmsNorm
        self.ln1, self.ln2, self.sizes = norm(C, eps=s.eps), norm(C, eps=s.eps), [q, kv, kv]
        self.qkv, self.proj = torch.nn.Linear(C, q + 2 * kv, bias=gpt2), torch.nn.Linear(q, C, bias=gpt2)
        self.fc = torch.nn.Linear(C, s.hidden if gpt2 else 2 * s.hidden, bias=gpt2)
        self.fcproj = torch.nn.Linear(s.hidden, C, bias=gpt2)
        if s.arch == "qwen3":
            self.q_norm, self.k_norm = RmsNorm(s.head_size, s.eps), RmsNorm(s.head_size, s.eps)

    def before(self, x, turns):
        """Queries, keys and values [B, T, heads, HS]."""
        parts = self.qkv(self.ln1(x)).split(self.sizes, dim=2)
        q, k, v = (t.view(*t.shape[:2], -1, self.s.head_size) for t in parts)
        if self.s.arch == "qwen3":
            q, k = self.q_norm(q), self.k_norm(k)
        return (q, k, v) if turns is None else (turn(q, turns), turn(k, turns), v)

    def after(self, x, y):
        """y: what attention returned."""
        x = x + self.proj(y.reshape(*x.shape[:2], -1))
        h = self.fc(self.ln2(x))
        if self.s.arch == "gpt2":
            return x + self.fcproj(F.gelu(h, approximate="tanh"))
        gate, up = h.chunk(2, dim=-1)
        return x + self.fcproj(F.silu(gate) * up)

    def forward(self, x, turns=None, documents=None):
        q, k, v = self.before(x, turns)
        return self.after(x, full_attention(q, k, v) if documents is None else packed_attention(q, k, v, documents))


class Model(torch.nn.Module):
    """The head is the token embedding."""
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.wte = torch.nn.Embedding(-(-s.vocab // 64) * 64, s.width)
        if s.arch == "gpt2":
            self.wpe, self.lnf = torch.nn.Embedding(s.context, s.width), torch.nn.LayerNorm(s.width, eps=s.eps)
        else:
            self.lnf = RmsNorm(s.width, s.eps)
            angles = torch.outer(torch.arange(s.context, dtype=torch.float64, device="cpu"), frequencies(s))[:, None]
            self.register_buffer("cos", angles.cos().to(self.wte.weight))
            self.register_buffer("sin", angles.sin().to(self.wte.weight))
        self.blocks = torch.nn.ModuleList(Block(s) for _ in range(s.layers))

    def embed(self, tokens, positions):
        """x [B, T, C]; positions [T], or None: from 0 in each row."""
        x = self.wte(tokens)
        if self.s.arch != "gpt2":
            return x
        return x + (self.wpe.weight[: tokens.shape[1]] if positions is None else self.wpe(positions))

    def loss(self, x, targets):
        """The sum over all targets [B, T] but those of -100."""
        logits = F.linear(self.lnf(x), self.wte.weight)
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), targets.reshape(-1), reduction="sum")

    def forward(self, tokens, targets, documents=None):
        positions, turns = documents.positions if documents else None, None
        if self.s.arch != "gpt2":
            place = slice(tokens.shape[1]) if positions is None else positions
            turns = self.cos[place], self.sin[place]
        x = self.embed(tokens, positions)
        for block in self.blocks:
            x = block(x, turns, documents)
        return self.loss(x, targets)


# Weights as GPT-2's: N(0, 0.02), biases 0, norms 1.
def initialise(model):
    for name, p in model.named_parameters():
        if p.dim() == 2:
            torch.nn.init.normal_(p, 0, 0.02)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(p)
