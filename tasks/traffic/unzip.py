"""A compressed body, unpacked as far as it came, every piece with the stamp of the bytes that completed it.

Nobody asked for compression; a proxy on the way may do it all the same. gzip and deflate are understood. What is left
out, and why, is told in `faults`: bytes that are no gzip, another encoding, more than MAX_BYTES.
"""

import zlib
from collections.abc import Iterable, Iterator

from tasks.traffic.sse import Piece
from tasks.traffic.wire import MAX_BYTES

WHOLE = (b"", b"identity")
KNOWN = (b"gzip", b"x-gzip", b"deflate")
EITHER = 32 + zlib.MAX_WBITS  # zlib finds out by itself which of the two it is


def unzipped(pieces: Iterable[Piece], encoding: bytes, faults: list[str]) -> Iterator[Piece]:
    """Pieces of the body as the server meant it. Appends to `faults` and ends where it cannot go on."""
    if encoding in WHOLE:
        yield from pieces
    elif encoding not in KNOWN:
        faults.append(f"content-encoding {encoding.decode(errors='replace')} was not asked for")
    else:
        try:
            yield from _unzip(pieces)
        except (zlib.error, OverflowError) as error:
            faults.append(f"content-encoding {encoding.decode()}: {error}")


def _unzip(pieces: Iterable[Piece]) -> Iterator[Piece]:
    inflate, left = zlib.decompressobj(EITHER), MAX_BYTES
    for at_ns, piece in pieces:
        data = inflate.decompress(piece, left + 1)
        left -= len(data)
        if left < 0:
            raise OverflowError(f"more than {MAX_BYTES} bytes")
        if data:
            yield at_ns, data
