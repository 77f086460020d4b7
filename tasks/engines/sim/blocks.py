"""The paged pool of the KV cache, and the prefix cache that lives in it.

As in vLLM: a block holds the keys and values of `size` tokens. A full block is known by a hash of its tokens and of all
before it, so a later prompt that begins alike takes it over. A block that nobody uses any more keeps its content and
goes to the end of the free queue; it is reused, and only then forgotten, from the front: least recently used first. The
blocks of one request are freed from its end, so that the shared beginning of prompts is the last to go.

Nothing here knows text, time or requests: hashes come from the caller, any hashable will do.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

Blocks = list[int]


class Pool:
    """`total` blocks of `size` tokens. What is held plus what is free is always `total`."""

    def __init__(self, total: int, size: int) -> None:
        self.total, self.size = total, size
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(total))
        self.users = [0] * total
        self.known: dict[Hashable, int] = {}
        self.hash_of: list[Hashable | None] = [None] * total

    @property
    def usage(self) -> float:
        """Share of the pool that requests hold, 0 to 1."""
        return 1 - len(self.free) / self.total

    def needed(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.size)

    def match(self, hashes: Sequence[Hashable], limit: int) -> Blocks:
        """The longest run of known blocks from the start of hashes, `limit` at most."""
        found = []
        for digest in hashes[:limit]:
            block = self.known.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def take(self, hits: Blocks, fresh: int) -> Blocks | None:
        """Hold the hits and `fresh` new blocks: hits first. None, and nothing held, if there are not enough."""
        if fresh > len(self.free) - sum(self.users[block] == 0 for block in hits):
            return None
        for block in hits:
            if self.users[block] == 0:
                del self.free[block]
            self.users[block] += 1
        return hits + [self._reuse() for _ in range(fresh)]

    def remember(self, block: int, digest: Hashable) -> None:
        """Make a full block known. The first block with a hash keeps it."""
        if self.hash_of[block] is None and digest not in self.known:
            self.known[digest] = block
            self.hash_of[block] = digest

    def give_back(self, blocks: Blocks) -> None:
        """Let go of one request's blocks."""
        for block in reversed(blocks):
            self.users[block] -= 1
            if self.users[block] == 0:
                self.free[block] = None

    def reset(self) -> bool:
        """Forget all content. False, and nothing forgotten, while a request holds blocks."""
        if len(self.free) < self.total:
            return False
        self.known.clear()
        self.hash_of = [None] * self.total
        return True

    def _reuse(self) -> int:
        block, _ = self.free.popitem(last=False)
        digest = self.hash_of[block]
        if digest is not None:
            del self.known[digest]
            self.hash_of[block] = None
        self.users[block] = 1
        return block
