#!/usr/bin/env python3
"""reference.py - golden losses and gradients of tiny models, made by PyTorch in double precision.

    python3 dev/reference.py test/golden [gpt2] [llama] [qwen2] [qwen3]

writes for each (default: all), into a folder of that folder,
    init/                 the initial weights as a Hugging Face directory (model.safetensors, config.json)
    golden.safetensors    gradients of the first step (names and layouts of Hugging Face's classes), fp32
    golden.json           losses of ten training steps and the gradient norms, as doubles
    muon.json             losses of ten steps of Muon
    adapter/              an adapter of all linears as PEFT has it; lora.safetensors, lora.json: as golden's, of ten
                          steps that train it alone
and beside them
    docs.jsonl            the documents, of very different lengths
    choices.jsonl         questions with several endings; what each model says of them: choices.json in its folder
    labels.jsonl          answers whose labels do not count alike, pairs.jsonl: preferences; for gpt2 the loss and the
                          gradients of every --loss, labels.json and labels-LOSS.safetensors in its folder

The models are written out here from their definitions, document by document, so that they share nothing with the
trainer: no packing, no masks but the causal one, no kernels. Needs torch and numpy only. Where transformers and peft
are installed, their classes must give the same loss and gradients.
"""
import json
import math
import os
import struct
import sys

import numpy as np
import torch

V, CONTEXT = 257, 48
STEPS, LR, WARMUP, BETAS, EPS, DECAY, CLIP = 10, 0.003, 3, (0.9, 0.95), 1e-8, 0.1, 1.0
LENGTHS = [1, 2, 3, 47, 48, 49, 96, 97, 130, 20, 11, 7, 5]  # in tokens, end-of-text included; the context is 48
END_OF_TEXT = 256
MODELS = {
    "gpt2": {"L": 2, "C": 32, "NH": 4},
    # Wavelengths are 6, 63, 628 and 6283 positions: of the scaling's three cases one, one and two.
    "llama": {"L": 2, "C": 32, "NH": 4, "NKV": 2, "HS": 8, "U": 36, "tied": False, "eps": 1e-5, "theta": 10000.0,
              "positions": 131072,
              "scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 64}},
    "qwen2": {"L": 2, "C": 24, "NH": 3, "NKV": 1, "HS": 8, "U": 40, "tied": True, "eps": 1e-6, "theta": 1000000.0,
              "positions": 48},
    "qwen3": {"L": 2, "C": 24, "NH": 4, "NKV": 2, "HS": 8, "U": 40, "tied": True, "eps": 1e-6, "theta": 500.0,
              "positions": 64},
}


def documents():
    rng = np.random.default_rng(7)
    words = "the ragged edge of every text is where it ends and".split()
    docs = []
    for n in LENGTHS:
        text = " ".join(rng.choice(words, size=n)) if n > 1 else ""
        docs.append(text[: n - 1].ljust(n - 1, "."))
    return docs


# ---- initial weights


def parameters(arch):
    g = torch.Generator().manual_seed(3)

    def normal(*shape, std=0.08):
        # rounded to fp32, so that both sides begin with the same numbers
        return (torch.randn(*shape, generator=g, dtype=torch.float64) * std).float().double()

    p = gpt2_parameters(MODELS[arch], normal) if arch == "gpt2" else rotary_parameters(arch, MODELS[arch], normal)
    p = {k: v.float().double() for k, v in p.items()}
    return {k: v.requires_grad_() for k, v in p.items()}


def gpt2_parameters(m, normal):
    C = m["C"]
    p = {"transformer.wte.weight": normal(V, C), "transformer.wpe.weight": normal(CONTEXT, C)}
    for l in range(m["L"]):
        h = f"transformer.h.{l}."
        p[h + "ln_1.weight"], p[h + "ln_1.bias"] = 1 + normal(C), normal(C)
        p[h + "attn.c_attn.weight"], p[h + "attn.c_attn.bias"] = normal(C, 3 * C, std=0.2), normal(3 * C)
        p[h + "attn.c_proj.weight"], p[h + "attn.c_proj.bias"] = normal(C, C, std=0.2), normal(C)
        p[h + "ln_2.weight"], p[h + "ln_2.bias"] = 1 + normal(C), normal(C)
        p[h + "mlp.c_fc.weight"], p[h + "mlp.c_fc.bias"] = normal(C, 4 * C, std=0.2), normal(4 * C)
        p[h + "mlp.c_proj.weight"], p[h + "mlp.c_proj.bias"] = normal(4 * C, C, std=0.1), normal(C)
    p["transformer.ln_f.weight"], p["transformer.ln_f.bias"] = 1 + normal(C), normal(C)
    return p


def rotary_parameters(arch, m, normal):
    C, q, kv, U = m["C"], m["NH"] * m["HS"], m["NKV"] * m["HS"], m["U"]
    p = {"model.embed_tokens.weight": normal(V, C)}
    for l in range(m["L"]):
        h = f"model.layers.{l}."
        p[h + "input_layernorm.weight"] = 1 + normal(C)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            p[h + f"self_attn.{name}_proj.weight"] = normal(rows, C, std=0.2)
            if arch == "qwen2":
                p[h + f"self_attn.{name}_proj.bias"] = normal(rows, std=0.2)
        if arch == "qwen3":
            p[h + "self_attn.q_norm.weight"] = 1 + normal(m["HS"])
            p[h + "self_attn.k_norm.weight"] = 1 + normal(m["HS"])
        p[h + "self_attn.o_proj.weight"] = normal(C, q, std=0.2)
        p[h + "post_attention_layernorm.weight"] = 1 + normal(C)
        p[h + "mlp.gate_proj.weight"], p[h + "mlp.up_proj.weight"] = normal(U, C, std=0.2), normal(U, C, std=0.2)
        p[h + "mlp.down_proj.weight"] = normal(C, U, std=0.1)
    p["model.norm.weight"] = 1 + normal(C)
    if not m["tied"]:
        p["lm_head.weight"] = normal(V, C)
    return p


# ---- the models: logits (T, V) of one piece of T tokens


def causal(T):
    return torch.triu(torch.full((T, T), -math.inf, dtype=torch.float64), 1)


def layer_norm(x, p, name):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], 1e-5)


def gpt2_logits(p, m, tokens, positions=None, mask=None):
    T, C, NH = len(tokens), m["C"], m["NH"]
    mask = causal(T) if mask is None else mask
    positions = torch.arange(T) if positions is None else positions
    x = p["transformer.wte.weight"][tokens] + p["transformer.wpe.weight"][positions]
    for l in range(m["L"]):
        h = f"transformer.h.{l}."
        qkv = layer_norm(x, p, h + "ln_1") @ p[h + "attn.c_attn.weight"] + p[h + "attn.c_attn.bias"]
        q, k, v = (t.view(T, NH, C // NH).transpose(0, 1) for t in qkv.split(C, dim=1))
        att = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(C // NH) + mask, dim=-1) @ v
        x = x + att.transpose(0, 1).reshape(T, C) @ p[h + "attn.c_proj.weight"] + p[h + "attn.c_proj.bias"]
        f = layer_norm(x, p, h + "ln_2") @ p[h + "mlp.c_fc.weight"] + p[h + "mlp.c_fc.bias"]
        f = 0.5 * f * (1 + torch.tanh(math.sqrt(2 / math.pi) * (f + 0.044715 * f**3)))
        x = x + f @ p[h + "mlp.c_proj.weight"] + p[h + "mlp.c_proj.bias"]
    return layer_norm(x, p, "transformer.ln_f") @ p["transformer.wte.weight"].T


def rms_norm(x, weight, eps):
    """Zhang and Sennrich 2019, equation 4, over the last axis."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def frequencies(m):
    """Radians a position for each pair of channels (Su et al. 2021, section 3.2.2), and Llama 3's scaling of them: a
    wave that is longer than original / low positions is slowed by the factor, one shorter than original / high is
    not, between the two it is interpolated in 1 / wavelength."""
    f = m["theta"] ** (-2 * torch.arange(m["HS"] // 2, dtype=torch.float64) / m["HS"])
    s = m.get("scaling")
    if s is None:
        return f
    waves = s["original_max_position_embeddings"] * f / (2 * math.pi)  # in the original context
    keep = ((waves - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])).clamp(0, 1)
    return f * (keep + (1 - keep) / s["factor"])


def rotate(x, angle):
    """x (T, heads, HS), angle (T, HS / 2): pair j is channels j and j + HS / 2."""
    c, s = torch.cos(angle)[:, None], torch.sin(angle)[:, None]
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * c - b * s, b * c + a * s], dim=-1)


def attention(q, k, v):
    """q (T, NH, HS), k and v (T, NKV, HS): heads in a row share keys and values (Ainslie et al. 2023)."""
    T, NH, HS = q.shape
    heads = []
    for h in range(NH):
        shared = h * k.shape[1] // NH
        scores = q[:, h] @ k[:, shared].T / math.sqrt(HS)
        heads.append(torch.softmax(scores + causal(T), dim=-1) @ v[:, shared])
    return torch.cat(heads, dim=1)


def rotary_logits(p, m, tokens):
    T, eps = len(tokens), m["eps"]
    angle = torch.arange(T, dtype=torch.float64)[:, None] * frequencies(m)
    x = p["model.embed_tokens.weight"][tokens]
    for l in range(m["L"]):
        h = f"model.layers.{l}."

        def linear(x, name):
            y = x @ p[h + name + ".weight"].T
            return y + p[h + name + ".bias"] if h + name + ".bias" in p else y

        n = rms_norm(x, p[h + "input_layernorm.weight"], eps)
        q, k, v = (linear(n, f"self_attn.{name}_proj").view(T, -1, m["HS"]) for name in "qkv")
        if h + "self_attn.q_norm.weight" in p:
            q = rms_norm(q, p[h + "self_attn.q_norm.weight"], eps)
            k = rms_norm(k, p[h + "self_attn.k_norm.weight"], eps)
        x = x + linear(attention(rotate(q, angle), rotate(k, angle), v), "self_attn.o_proj")
        n = rms_norm(x, p[h + "post_attention_layernorm.weight"], eps)
        gate, up = linear(n, "mlp.gate_proj"), linear(n, "mlp.up_proj")
        x = x + linear(gate * torch.sigmoid(gate) * up, "mlp.down_proj")  # SwiGLU: Shazeer 2020, equation 6
    return rms_norm(x, p["model.norm.weight"], eps) @ p.get("lm_head.weight", p["model.embed_tokens.weight"]).T


def logits_of(arch, p):
    """A function from the tokens of a piece to its logits."""
    forward = gpt2_logits if arch == "gpt2" else rotary_logits
    return lambda tokens: forward(p, MODELS[arch], tokens)


# ---- training


def step_loss(logits, docs):
    """Mean loss over all labelled tokens. A long document is cut; only its last token has no label."""
    total, n_targets = 0.0, 0
    for text in docs:
        tokens = [END_OF_TEXT] + list(text.encode())
        targets = tokens[1:] + [-1]
        for first in range(0, len(tokens), CONTEXT):
            piece = slice(first, first + CONTEXT)
            total = total + torch.nn.functional.cross_entropy(logits(torch.tensor(tokens[piece])),
                                                              torch.tensor(targets[piece]),
                                                              ignore_index=-1, reduction="sum")
        n_targets += len(tokens) - 1
    return total / n_targets


def learning_rate(t):
    if t < WARMUP:
        return LR * t / WARMUP
    x = (t - WARMUP) / (STEPS - WARMUP)
    return LR * (1 - 0.9 * 0.5 * (1 - math.cos(math.pi * x)))


# ---- Muon (Jordan et al. 2024), scaled as Moonlight's (arXiv 2502.16982), from its definition

MOMENTUM = 0.95


def orthogonal(u):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = u / (u.norm() + 1e-7)
    for _ in range(5):
        s = x @ x.T if x.shape[0] <= x.shape[1] else x.T @ x
        polynomial = b * s + c * s @ s
        x = a * x + (polynomial @ x if x.shape[0] <= x.shape[1] else x @ polynomial)
    return x * 0.2 * math.sqrt(max(x.shape))


def muon_parts(name, matrix):
    """Queries, keys and values are matrices of their own; GPT-2 has them side by side."""
    return matrix.split(matrix.shape[1] // 3, dim=1) if "c_attn" in name else [matrix]


class Muon:
    """Steps the matrices of layers; the others are AdamW's."""

    def __init__(self, p):
        self.p = {k: v for k, v in p.items() if v.dim() > 1 and (".h." in k or ".layers." in k)}
        self.m = {k: torch.zeros_like(v) for k, v in self.p.items()}

    def step(self, lr):
        with torch.no_grad():
            for k, w in self.p.items():
                self.m[k] = MOMENTUM * self.m[k] + (1 - MOMENTUM) * w.grad
                u = MOMENTUM * self.m[k] + (1 - MOMENTUM) * w.grad
                step = torch.cat([orthogonal(part) for part in muon_parts(k, u)], dim=1)
                w -= lr * (step + DECAY * w)


# ---- LoRA (Hu et al. 2021): the same model with W + (alpha / rank) B A in place of W

RANK, ALPHA = 3, 7.5


def adapter_name(weight, part):
    return f"base_model.model.{weight[:-len('.weight')]}.lora_{part}.weight"


def adapters(p):
    g = torch.Generator().manual_seed(5)
    q = {}
    for k, w in p.items():
        if w.dim() == 1 or not (".h." in k or ".layers." in k):
            continue
        rows, cols = reversed(w.shape) if ".h." in k else w.shape
        q[adapter_name(k, "A")] = torch.randn(RANK, cols, generator=g, dtype=torch.float64) * 0.2
        q[adapter_name(k, "B")] = torch.randn(rows, RANK, generator=g, dtype=torch.float64) * 0.1
    return {k: v.float().double().requires_grad_() for k, v in q.items()}


def adapted(p, q):
    whole = {k: w.detach() for k, w in p.items()}
    for k in whole:
        if adapter_name(k, "A") in q:
            change = ALPHA / RANK * q[adapter_name(k, "B")] @ q[adapter_name(k, "A")]
            whole[k] = whole[k] + (change.T if ".h." in k else change)
    return whole


def train(arch, base, docs, muon=None, q=None):
    losses, norms, first_grads = [], [], None
    p = q or base  # what learns
    matrices = [v for k, v in p.items() if v.dim() > 1 and not (muon and k in muon.p)]
    vectors = [v for v in p.values() if v.dim() == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    for t in range(1, STEPS + 1):
        for value in p.values():
            value.grad = None
        loss = step_loss(logits_of(arch, adapted(base, q) if q else p), docs)
        loss.backward()
        if first_grads is None:
            first_grads = {k: v.grad.numpy().copy() for k, v in p.items()}
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(p.values()), CLIP)))
        losses.append(loss.item())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(t)
        optimizer.step()
        if muon:
            muon.step(learning_rate(t))
    return losses, norms, first_grads


# ---- endings


def questions():
    """HellaSwag's format; a context that is empty, endings of unlike lengths, letters of several bytes."""
    return [{"ctx": "the ragged edge", "endings": ["of every text", "is", "where it ends and ends"], "label": 0},
            {"ctx": "", "endings": ["text", "edge of the text", "zzzz"], "label": 1},
            {"ctx": "it ends where every text", "endings": ["ends", "qqq qq q", "\u00e9\u00fc\u20ac"], "label": 2},
            {"ctx": "of the edge and", "endings": ["the", "where every", "ragged"], "label": 1}]


def mean_likelihoods(logits, question):
    """Of each ending: the mean of log p over its tokens, a space before it, after end-of-text and the context."""
    context, means = [END_OF_TEXT] + list(question["ctx"].encode()), []
    for ending in question["endings"]:
        tokens = context + list((" " + ending).encode())
        scores = torch.log_softmax(logits(torch.tensor(tokens)), -1).detach()
        means.append(float(sum(scores[i - 1, tokens[i]] for i in range(len(context), len(tokens)))
                           / (len(tokens) - len(context))))
    return means


# ---- the same by transformers


def compare(init, docs, loss, grads, adapter=None):
    """Its classes keep norms, softmax and angles in fp32 whatever the type: a rounding is 6e-8, sums of some dozen of
    them stay below 1e-5."""
    try:
        import transformers
        if adapter:
            import peft
    except ImportError as missing:
        return f"{missing.name} is not installed: compared with nothing"
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(init, attn_implementation="eager")
    if adapter:
        model = peft.PeftModel.from_pretrained(model, adapter, is_trainable=True)
    model = model.double().train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    theirs = step_loss(lambda tokens: model(input_ids=tokens[None]).logits[0], docs)
    theirs.backward()
    found = {k.replace(".default", ""): v.grad.numpy() for k, v in model.named_parameters() if v.requires_grad}
    if sorted(found) != sorted(grads):
        sys.exit(f"{init}: other tensors in {type(model).__name__}: {sorted(set(found) ^ set(grads))}")
    worst = max(float(np.abs(found[k] - g).max() / np.abs(g).max()) for k, g in grads.items())
    apart = abs(theirs.item() - loss) / loss
    words = (f"{type(model).__name__} of transformers {transformers.__version__}: loss differs by {apart:.1e}, "
             f"gradients by at most {worst:.1e} of a tensor's largest")
    if max(worst, apart) > 1e-5:
        sys.exit(f"{init}: {words}")
    return words


# ---- labels that do not count alike: a prompt and its answers are one sequence, under the mask of a tree

CLIP_LOW, CLIP_HIGH, KL, BETA = 0.2, 0.28, 0.05, 0.3


def log_likelihoods(p, prompt, answers):
    """Of the tokens of each answer, and of the end behind it. An answer begins with a copy of the prompt's last
    token; a token sees those before it in the prompt and in its own answer."""
    prompt = [END_OF_TEXT] + list(prompt.encode())
    tokens, positions, owner, found = prompt[:-1], list(range(len(prompt) - 1)), [-1] * (len(prompt) - 1), []
    for i, text in enumerate(answers):
        part = prompt[-1:] + list(text.encode()) + [END_OF_TEXT]
        found.append((len(tokens), part[1:]))
        tokens, owner = tokens + part, owner + [i] * len(part)
        positions = positions + list(range(len(prompt) - 1, len(prompt) - 1 + len(part)))
    owner = torch.tensor(owner)
    sees = (owner[:, None] == owner[None]) | (owner[None] == -1)
    mask = causal(len(tokens)).masked_fill(~sees, -math.inf)
    logits = gpt2_logits(p, MODELS["gpt2"], torch.tensor(tokens), torch.tensor(positions), mask)
    scores = torch.log_softmax(logits, -1)
    return [scores[range(first, first + len(part)), part] for first, part in found]


def label_lines(p):
    """Ratios to the old policy are far from where they are clipped."""
    rng, rows, pairs = np.random.default_rng(11), [], []
    texts = [("the ragged edge", ["of every text", "is", ""]), ("where", ["it ends", "it ends and ends", "qq"]),
             ("t", ["he text is", "he edge"])]
    for prompt, answers in texts:
        row = []
        for i, (text, own) in enumerate(zip(answers, log_likelihoods(p, prompt, answers))):
            own = own.detach().numpy()
            row.append({"text": text, "weight": [1, 0.5, 2][i], "advantage": [0.7, -1.2, 0.4][i],
                        "logprobs": [round(float(x), 6) for x in own + rng.choice([-0.6, -0.05, 0.05, 0.6], len(own))],
                        "reference": [round(float(x), 6) for x in own + rng.normal(size=len(own)) / 4]})
        rows.append({"prompt": prompt, "answers": row})
        ranked = [{"text": a["text"], "reference": a["reference"], "rank": i} for i, a in enumerate(row)]
        pairs.append({"prompt": prompt, "answers": ranked})
    return rows, pairs


def label_loss(p, loss, rows, pairs):
    total, count = 0.0, 0.0
    for row in pairs if loss == "dpo" else rows:
        answers = row["answers"]
        found = log_likelihoods(p, row["prompt"], [a["text"] for a in answers])
        reference = [torch.tensor(a["reference"], dtype=torch.float64) for a in answers]
        for i, a in enumerate(answers):
            if loss == "dpo":  # Rafailov et al. 2023, equation 7
                for j in range(i + 1, len(answers)):
                    margin = (found[i] - reference[i]).sum() - (found[j] - reference[j]).sum()
                    total, count = total - torch.nn.functional.logsigmoid(BETA * margin), count + 1
                continue
            terms = -found[i]
            if loss == "grpo":  # Shao et al. 2024, equations 3 and 4, over tokens
                ratio = torch.exp(found[i] - torch.tensor(a["logprobs"], dtype=torch.float64))
                gain = torch.minimum(ratio * a["advantage"], ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * a["advantage"])
                apart = reference[i] - found[i]
                terms = -gain + KL * (torch.exp(apart) - apart - 1)
            total, count = total + a["weight"] * terms.sum(), count + a["weight"] * len(terms)
    return total / count


def write_labels(out):
    p = parameters("gpt2")
    rows, pairs = label_lines(p)
    for name, lines in (("labels", rows), ("pairs", pairs)):
        with open(os.path.join(out, name + ".jsonl"), "w") as f:
            for line in lines:
                f.write(json.dumps(line) + "\n")
    losses = {}
    for loss in ("nll", "grpo", "dpo"):
        for v in p.values():
            v.grad = None
        value = label_loss(p, loss, rows, pairs)
        value.backward()
        losses[loss] = value.item()
        write_safetensors(os.path.join(out, "gpt2", f"labels-{loss}.safetensors"),
                          {k: v.grad.numpy().astype(np.float32) for k, v in p.items()})
    write_json(os.path.join(out, "gpt2", "labels.json"), losses)
    print(f"{out}/labels.jsonl: losses {losses}")


# ---- files


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [offset, offset + value.nbytes]}
        offset += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            f.write(np.ascontiguousarray(value).tobytes())


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def config(arch):
    m = MODELS[arch]
    if arch == "gpt2":
        return {"model_type": "gpt2", "activation_function": "gelu_new", "n_layer": m["L"], "n_embd": m["C"],
                "n_head": m["NH"], "n_inner": None, "vocab_size": V, "n_positions": CONTEXT,
                "layer_norm_epsilon": 1e-05}
    c = {"model_type": arch, "hidden_act": "silu", "num_hidden_layers": m["L"], "hidden_size": m["C"],
         "num_attention_heads": m["NH"], "num_key_value_heads": m["NKV"], "head_dim": m["HS"],
         "intermediate_size": m["U"], "vocab_size": V, "max_position_embeddings": m["positions"],
         "rms_norm_eps": m["eps"], "tie_word_embeddings": m["tied"]}
    if arch == "qwen3":  # as transformers 5 writes it
        return {**c, "rope_parameters": {"rope_type": "default", "rope_theta": m["theta"]}}
    return {**c, "rope_theta": m["theta"], "rope_scaling": m.get("scaling")}


def write_golden(arch, out, docs):
    init = os.path.join(out, "init")
    os.makedirs(init, exist_ok=True)
    p = parameters(arch)
    weights = {k: v.detach().float().numpy() for k, v in p.items()}
    write_safetensors(os.path.join(init, "model.safetensors"), weights)
    write_json(os.path.join(init, "config.json"), config(arch))
    losses, norms, grads = train(arch, p, docs)
    write_safetensors(os.path.join(out, "golden.safetensors"), {k: g.astype(np.float32) for k, g in grads.items()})
    options = ["--steps", str(STEPS), "--batch-tokens", str(sum(LENGTHS)), "--lr", str(LR), "--warmup", str(WARMUP),
               "--schedule", "cosine,min-lr=0.1", "--adamw", f"decay={DECAY}", "--clip", str(CLIP)]
    if arch != "gpt2":
        options += ["--context", str(CONTEXT)]
    write_json(os.path.join(out, "golden.json"),
               {"torch": torch.__version__, "options": options, "losses": losses, "grad_norms": norms})
    p = parameters(arch)
    write_json(os.path.join(out, "muon.json"), {"losses": train(arch, p, docs, Muon(p))[0]})
    print(f"{out}: losses {losses[0]:.6f} .. {losses[-1]:.6f}, norms {norms[0]:.4f} .. {norms[-1]:.4f}")
    print(f"    {compare(init, docs, losses[0], grads)}")
    write_adapter(arch, out, docs)


def write_adapter(arch, out, docs):
    init, adapter, p = os.path.join(out, "init"), os.path.join(out, "adapter"), parameters(arch)
    q = adapters(p)
    targets = sorted({".".join(k.split(".")[-4:-2]) for k in q})
    os.makedirs(adapter, exist_ok=True)
    write_safetensors(os.path.join(adapter, "adapter_model.safetensors"),
                      {k: v.detach().numpy().astype(np.float32) for k, v in q.items()})
    write_json(os.path.join(adapter, "adapter_config.json"),
               {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": f"test/golden/{arch}/init",
                "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0, "bias": "none", "target_modules": targets,
                "fan_in_fan_out": arch == "gpt2"})
    losses, norms, grads = train(arch, p, docs, q=q)
    write_safetensors(os.path.join(out, "lora.safetensors"), {k: g.astype(np.float32) for k, g in grads.items()})
    write_json(os.path.join(out, "lora.json"), {"losses": losses, "grad_norms": norms})
    print(f"    {compare(init, docs, losses[0], grads, adapter)}")


def write_choices(arch, out):
    logits = logits_of(arch, parameters(arch))
    means = [mean_likelihoods(logits, q) for q in questions()]
    right = sum(int(np.argmax(m)) == q["label"] for m, q in zip(means, questions()))
    write_json(os.path.join(out, "choices.json"), {"right": right, "means": means})


def main():
    archs = sys.argv[2:] or list(MODELS)
    if len(sys.argv) < 2 or not set(archs) <= set(MODELS):
        sys.exit(__doc__)
    docs = documents()
    os.makedirs(sys.argv[1], exist_ok=True)
    with open(os.path.join(sys.argv[1], "docs.jsonl"), "w") as f:
        for text in docs:
            f.write(json.dumps({"text": text}) + "\n")
    with open(os.path.join(sys.argv[1], "choices.jsonl"), "w") as f:
        for question in questions():
            f.write(json.dumps(question) + "\n")
    if "gpt2" in archs:
        os.makedirs(os.path.join(sys.argv[1], "gpt2"), exist_ok=True)
        write_labels(sys.argv[1])
    for arch in archs:
        write_golden(arch, os.path.join(sys.argv[1], arch), docs)
        write_choices(arch, os.path.join(sys.argv[1], arch))


if __name__ == "__main__":
    main()
