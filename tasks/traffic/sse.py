"""Server-sent events from the pieces of a body, each with the stamp of the piece that completed it. Pure.

An event is there when its closing blank line is; however the network cut the bytes, the events are the same. Lines end
with LF or CRLF. A lone CR, which the standard also allows, is not known from any server of this field.

Parsing costs the client's core, so the usual event has a short way: a piece of whole `data:` lines is cut at the blank
lines, at a tenth of the price of going line by line.
"""

from collections.abc import Iterable, Iterator

Piece = tuple[int, bytes]  # arrival in ns of a monotonic clock, and what arrived
Event = tuple[int, str, bytes, bool]  # arrival, name, data, whether its end arrived
FIELDS = (b"data", b"event", b"id", b"retry")
JUNK = "a line that is no field of an event"
COMMENT = "a comment"


def events(pieces: Iterable[Piece]) -> Iterator[Event]:
    """Every event; what is no field of an event is named JUNK, a comment COMMENT."""
    lines, at = _Lines(), 0
    for at, piece in pieces:
        if not lines.is_between or piece[-2:] != b"\n\n" or b"\r" in piece:
            yield from lines.feed(at, piece)
            continue
        for part in piece[:-2].split(b"\n\n"):
            if part[:6] == b"data: " and b"\n" not in part:
                yield at, "", part[6:], True
            else:
                yield from lines.feed(at, part + b"\n\n")
    yield from lines.end(at)


class _Lines:
    """Lines put together to events, from any cut of the bytes."""

    def __init__(self) -> None:
        self.name, self.data, self.rest = "", list[bytes](), list[bytes]()

    @property
    def is_between(self) -> bool:
        """Whether no event has begun."""
        return not (self.rest or self.data or self.name)

    def feed(self, at: int, piece: bytes) -> Iterator[Event]:
        *whole, tail = piece.split(b"\n")
        for line in whole:
            if self.rest:
                line, self.rest = b"".join([*self.rest, line]), []
            yield from self._line(at, line.removesuffix(b"\r"), is_whole=True)
        if tail:
            self.rest.append(tail)

    def end(self, at: int) -> Iterator[Event]:
        """What has begun and did not end."""
        if last := b"".join(self.rest).removesuffix(b"\r"):
            yield from self._line(at, last, is_whole=False)
        if self.data:
            yield at, self.name, b"\n".join(self.data), False

    def _line(self, at: int, line: bytes, *, is_whole: bool) -> Iterator[Event]:
        key, _, value = line.partition(b":")
        if not line:
            if self.data:
                yield at, self.name, b"\n".join(self.data), True
            self.name, self.data = "", []
        elif key == b"data":
            self.data.append(value.removeprefix(b" "))
        elif key == b"event":
            self.name = value.strip().decode(errors="replace")
        elif not key:
            yield at, COMMENT, value, is_whole
        elif key not in FIELDS and (is_whole or not any(name.startswith(line) for name in FIELDS)):
            yield at, JUNK, line, is_whole
