"""Train the main model and the draft model from scratch on the synthetic dialogues; both see the same batches.

python train.py --seconds 420 --out build            # on a GPU
python train.py --seconds 60 --tiny --out dry         # dry run on a CPU
python train.py --export build --out .                # write model/ and draft/ in the Hugging Face layout
"""

import argparse
import json
import multiprocessing as mp
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from network import LENGTH, SHAPES, TINY, VOCAB, Model, attention_mask
from packing import CATEGORIES, held_rows, stream
from rendering import HERE


def loss_of(model, ids, seg, pos, weight, mask):
    logits = model(ids, pos, mask)[:, :-1]
    w = (weight[:, 1:] / 100.0) * (seg[:, 1:] == seg[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    return (loss * w.flatten()).sum() / w.sum().clamp(min=1)


def rate(done: float, step: int, peak: float, warmup: int) -> float:
    """Warm-up, then linear to a hundredth, by the share of the time that is used."""
    return peak * min(1.0, (step + 1) / warmup) * max(0.01, 1 - max(0.0, done - 0.15) / 0.85)


@torch.no_grad()
def exact_match(model, rows, device, flex) -> dict:
    """Share of held-out requests for which every assistant token of every step is the greedy choice."""
    good, total = {}, {}
    for i in range(0, len(rows), 8):
        part = rows[i : i + 8]
        ids, seg, pos, weight = torch.from_numpy(np.stack([r for r, _ in part])).to(device).long().unbind(1)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            wrong = (model(ids, pos, attention_mask(seg, flex))[:, :-1].argmax(-1) != ids[:, 1:]) & (
                weight[:, 1:] == 100
            )
        for r, (_, labels) in enumerate(part):
            for d, label in enumerate(labels):
                total[label] = total.get(label, 0) + 1
                good[label] = good.get(label, 0) + int(not (wrong[r] & (seg[r, 1:] == d + 1)).any())
    out = {k: round(good[k] / total[k], 3) for k in sorted(total)}
    return out | {"all": round(sum(good.values()) / sum(total.values()), 3), "n": sum(total.values())}


class Learner:
    """One of the two models, its optimiser and its compiled loss."""

    def __init__(self, model, peak: float, *, compiled: bool, fused: bool):
        self.model, self.peak = model, peak
        self.optim = torch.optim.AdamW(groups(model), lr=peak, betas=(0.9, 0.95), fused=fused)
        self.loss = torch.compile(loss_of, dynamic=False) if compiled else loss_of
        self.score = torch.compile(model, dynamic=False) if compiled else model
        self.last = 0.0

    def learn(self, batch, mask, lr: float) -> None:
        for group in self.optim.param_groups:
            group["lr"] = lr
        device = batch.device.type
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = self.loss(self.model, *batch.unbind(1), mask)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optim.step()
        self.optim.zero_grad(set_to_none=True)
        self.last = loss.detach()


def train(a) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    flex, shapes = device == "cuda" and not a.eager, TINY if a.tiny else SHAPES
    queue = mp.Queue(maxsize=48)
    workers = started(a, queue)
    rows = held_rows(a.tokenizer, a.held, a.length) if a.held else []
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    models = {name: Model(shape).to(device) for name, shape in shapes.items()}
    for name, model in models.items() if a.init else ():
        model.load_state_dict(read_weights(a.init, name, device))
    peak = {"model": a.lr, "draft": a.lr * 1.5}
    learners = {n: Learner(m, peak[n], compiled=flex, fused=device == "cuda") for n, m in models.items()}
    print({n: sum(p.numel() for p in m.parameters()) for n, m in models.items()}, device, flush=True)
    result = loop(a, queue, learners, device, flex)
    for worker in workers:
        worker.terminate()
    write_weights(a.out, models, a.shard_mb)
    if rows:
        result |= {name: exact_match(learner.score, rows, device, flex) for name, learner in learners.items()}
    (a.out / "result.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result), flush=True)


def started(a, queue) -> list:
    """Worker processes that fill the queue with batches."""
    fixed = (a.rows, a.length, queue, a.other, a.focus, a.focus_share)
    workers = [
        mp.Process(target=stream, args=(a.tokenizer, a.seed * 1000 + i, *fixed), daemon=True) for i in range(a.workers)
    ]
    for worker in workers:
        worker.start()
    return workers


def loop(a, queue, learners: dict, device: str, flex: bool) -> dict:
    """Learn until the time is up; it counts from the third step, when everything is compiled."""
    start, step, seen, own, saved = None, 0, 0, 0, time.time()
    while start is None or time.time() - start < a.seconds:
        batch = torch.from_numpy(queue.get()).to(device).long()
        mask = attention_mask(batch[:, 1], flex)
        done = (time.time() - start) / a.seconds if start else 0.0
        for name, learner in learners.items():
            if name != "draft" or step % a.draft_every == 0:
                learner.learn(batch, mask, rate(done, step, learner.peak, a.warmup))
        step += 1
        seen, own = seen + batch[:, 0].numel(), own + int((batch[:, 3] == 100).sum())
        if start is None and step >= 3:
            start = time.time()
        if start and step % a.log == 0:
            say(step, time.time() - start, learners, seen, own)
        if time.time() - saved > a.save_every:
            saved = time.time()
            write_weights(a.out, {name: learner.model for name, learner in learners.items()}, a.shard_mb)
    return {"steps": step, "positions": seen, "assistant_tokens": own, "seconds": round(time.time() - start, 1)}


def say(step: int, seconds: float, learners: dict, seen: int, own: int) -> None:
    losses = " ".join(f"{name} {float(learner.last):.4f}" for name, learner in learners.items())
    speed = f"positions/s {seen / seconds:.0f} assistant tokens {own / 1e6:.1f}M"
    print(f"step {step} t {seconds:.0f}s {losses} {speed}", flush=True)


def groups(model):
    """Weight decay on matrices only."""
    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if p.dim() == 2 and "embed" not in n], "weight_decay": 0.1},
        {"params": [p for n, p in named if p.dim() < 2 or "embed" in n], "weight_decay": 0.0},
    ]


# ---- files -----------------------------------------------------------------------------------------------------------
def write_weights(out: Path, models: dict, shard_mb: float) -> None:
    """bf16 weights as NAME-00.safetensors, NAME-01.safetensors ..., each below shard_mb."""
    out.mkdir(parents=True, exist_ok=True)
    for name, model in models.items():
        part, size, number = {}, 0, 0
        for key, tensor in model.state_dict().items():
            tensor = tensor.detach().to("cpu", torch.bfloat16).contiguous()
            if part and size + tensor.nbytes > shard_mb * 2**20:
                save_file(part, str(out / f"{name}-{number:02d}.safetensors"))
                part, size, number = {}, 0, number + 1
            part[key], size = tensor, size + tensor.nbytes
        save_file(part, str(out / f"{name}-{number:02d}.safetensors"))


def read_weights(folder: Path, name: str, device="cpu") -> dict:
    tensors = {}
    for f in sorted(folder.glob(f"{name}-*.safetensors")):
        tensors |= load_file(str(f))
    return {k: v.to(device, torch.float32) for k, v in tensors.items()}


def export(build: Path, out: Path) -> None:
    """Write model/ and draft/ so that transformers and vLLM load them as LlamaForCausalLM."""
    for name, s in SHAPES.items():
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        weights = {f"model.{k}": v.to(torch.bfloat16).contiguous() for k, v in read_weights(build, name).items()}
        save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
        config = dict(
            architectures=["LlamaForCausalLM"],
            model_type="llama",
            vocab_size=VOCAB,
            hidden_size=s.hidden,
            intermediate_size=s.inner,
            num_hidden_layers=s.layers,
            num_attention_heads=s.heads,
            num_key_value_heads=s.kv_heads,
            head_dim=s.head_dim,
            max_position_embeddings=LENGTH,
            rope_theta=10000.0,
            rms_norm_eps=1e-5,
            hidden_act="silu",
            tie_word_embeddings=True,
            attention_bias=False,
            mlp_bias=False,
            torch_dtype="bfloat16",
            bos_token_id=None,
            eos_token_id=2,
            pad_token_id=0,
        )
        (folder / "config.json").write_text(json.dumps(config, indent=1))
        (folder / "generation_config.json").write_text(
            json.dumps(dict(do_sample=False, temperature=0.0, eos_token_id=2, pad_token_id=0), indent=1)
        )
        for f in ("tokenizer.json", "tokenizer_config.json"):
            if not (folder / f).exists():
                (folder / f).write_text((out / "model" / f).read_text())


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--export", type=Path, help="folder with trained weights; writes model/ and draft/ and stops")
    ap.add_argument("--init", type=Path, help="start from the weights in this folder")
    ap.add_argument("--tokenizer", type=Path, default=HERE / "model" / "tokenizer.json")
    ap.add_argument("--seconds", type=float, default=420)
    ap.add_argument("--rows", type=int, default=8, help="rows per step")
    ap.add_argument(
        "--length",
        type=int,
        default=2 * LENGTH,
        help="positions per row; a dialogue itself stays below the context length",
    )
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--warmup", type=int, default=150)
    ap.add_argument("--focus", choices=CATEGORIES, help="fine-tune on one kind of request, with short system turns")
    ap.add_argument("--focus-share", type=float, default=0.6)
    ap.add_argument("--other", type=float, default=0.1, help="loss weight of tokens that the assistant does not write")
    ap.add_argument("--draft-every", type=int, default=2, help="train the draft model on every n-th batch")
    ap.add_argument("--workers", type=int, default=12)
    ap.add_argument("--held", type=int, default=64, help="rows of the exact-match check")
    ap.add_argument("--log", type=int, default=200)
    ap.add_argument("--save-every", type=float, default=100)
    ap.add_argument("--shard-mb", type=float, default=15)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--eager", action="store_true", help="no compilation: for short fine-tuning runs")
    ap.add_argument("--tiny", action="store_true")
    a = ap.parse_args()
    export(a.export, a.out) if a.export else train(a)


if __name__ == "__main__":
    main()
