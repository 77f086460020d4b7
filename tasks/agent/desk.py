"""What one played task can touch: the search index, shared and frozen, and a task list of its own.

Search is BM25 (bm25s, k1 1.5, b 0) over the frozen corpus. A title is indexed three times, so that a word of the title
outweighs a word of the text; length does not count, since documents differ in length only by how many facts they hold.
Equal scores keep the order of the corpus: the same query gives the same result everywhere.

bm25s tries JAX when it is imported, and JAX takes three quarters of the first GPU it sees: the GPU that is being
measured. It is imported without; numpy ranks a corpus of this size as fast.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

TITLE_WEIGHT = 3
RESULTS = 3


@dataclass(frozen=True)
class Index:
    """Documents (title, snippet) and the BM25 index over them."""

    documents: tuple[dict[str, str], ...]
    bm25: Any


@dataclass
class Desk:
    """The place where one task is played. `measured` forbids every search but the frozen one."""

    index: Index
    tasks: list[dict[str, Any]] = field(default_factory=list)
    measured: bool = True
    next_id: int = 1

    def __post_init__(self) -> None:
        self.tasks = [dict(task) for task in self.tasks]
        self.next_id = max([self.next_id, *(task["id"] + 1 for task in self.tasks)])


def index_of(documents: list[dict[str, str]]) -> Index:
    """Build the index once per corpus; it is read only and may be shared by threads."""
    with _without("jax"):
        import bm25s

    bm25 = bm25s.BM25(k1=1.5, b=0.0, method="lucene")
    texts = [_words(d["title"]) * TITLE_WEIGHT + _words(d["snippet"]) for d in documents]
    bm25.index(texts, show_progress=False)
    return Index(tuple(documents), bm25)


@contextmanager
def _without(package: str) -> Iterator[None]:
    """A package that is installed, and not yet imported, cannot be while the block runs."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


def best(index: Index, query: str) -> list[dict[str, str]]:
    """The documents that fit a query best, at most RESULTS; none if no word of it is known."""
    known = [word for word in dict.fromkeys(_words(query)) if word in index.bm25.vocab_dict]
    if not known:
        return []
    scores = index.bm25.get_scores(known)
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:RESULTS]
    return [index.documents[i] for i in order if scores[i] > 0]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())
