"""Rows for training: dialogues as ids, segment, position and loss weight.

A row holds one system turn and, behind it, as many dialogues as fit. A dialogue sees the system turn and itself, never
its neighbours, and its positions start right after the system turn. So one system turn serves several dialogues, and
each token sees what it would see when the model is served.
"""

import random
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from dialogues import WEIGHTS, dialogue
from held_out import eval_world, invented_words
from network import LENGTH
from rendering import SYSTEM, TOOLS, render_system, segments, system_variant
from world import World

CATEGORIES = list(WEIGHTS)


class Packer:
    """Turns dialogues into rows of ids, segment, position and loss weight."""

    def __init__(self, tokenizer: Path, length=LENGTH):
        self.tok, self.length = Tokenizer.from_file(str(tokenizer)), length

    def encode(self, messages, other=0.1):
        parts = segments(messages)
        encoded = self.tok.encode_batch([t for t, _ in parts], add_special_tokens=False)
        ids = [i for e in encoded for i in e.ids]
        weight = [w for e, (_, own) in zip(encoded, parts) for w in [1.0 if own else other] * len(e.ids)]
        return ids, weight

    def row(self, system: str, next_dialogue, tries=4):
        """One row: [ids, segment, position, weight * 100]. Also the labels of the dialogues in it."""
        head = self.tok.encode(system, add_special_tokens=False).ids
        out = np.zeros((4, self.length), np.int16)
        out[1] = -1
        n = len(head)
        out[0, :n], out[1, :n], out[2, :n] = head, 0, np.arange(n)
        at, labels = n, []
        while tries:
            label, (ids, weight) = next_dialogue()
            if at + len(ids) > self.length or n + len(ids) > LENGTH:
                tries -= 1
                continue
            span = slice(at, at + len(ids))
            out[0, span], out[1, span], out[2, span] = ids, len(labels) + 1, np.arange(n, n + len(ids))
            out[3, span] = np.round(np.array(weight) * 100)
            at += len(ids)
            labels.append(label)
        return out, labels


def stream(
    tokenizer: Path, seed: int, rows: int, length: int, queue, other: float, focus: str | None, share: float
) -> None:
    """Worker: endless batches of fresh dialogues. Nothing is ever repeated."""
    rng, packer = random.Random(seed), Packer(tokenizer, length)
    banned, canonical = invented_words(eval_world()), render_system(SYSTEM, TOOLS)
    world, left = None, 0

    def next_dialogue():
        nonlocal world, left
        if not left:
            world, left = World(rng, rng.choice((40, 100, 200, 300)), banned), 60
            world.limit = rng.choice((1, 1, 2, 3)) if focus else 3
        left -= 1
        special = focus and rng.random() < share
        return None, packer.encode(
            dialogue(world, rng, turns=1, kind=focus) if special else dialogue(world, rng), other
        )

    def system():
        if focus and rng.random() < 0.7:
            return render_system(SYSTEM.split("\n")[0], TOOLS)
        return canonical if rng.random() < 0.5 else system_variant(rng)

    while True:
        queue.put(np.stack([packer.row(system(), next_dialogue)[0] for _ in range(rows)]))


def held_rows(tokenizer: Path, count: int, length=LENGTH, seed=5):
    """Rows of single requests with held-out names and held-out phrasings, for the exact-match check."""
    rng, packer = random.Random(seed), Packer(tokenizer, length)
    canonical = render_system(SYSTEM, TOOLS)
    worlds = [World(rng, 300) for _ in range(4)]

    def next_dialogue():
        kind = rng.choice(CATEGORIES)
        return kind, packer.encode(dialogue(rng.choice(worlds), rng, held=True, turns=1, kind=kind), 0.0)

    return [packer.row(canonical, next_dialogue) for _ in range(count)]
