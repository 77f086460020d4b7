"""A compressed body is read as far as it came, at the time at which it came."""

import gzip
import zlib

import pytest

from tasks.traffic import unzip

TEXT = b"data: one\n\n" * 50


def unzipped(pieces: list[tuple[int, bytes]], encoding: bytes) -> tuple[list[tuple[int, bytes]], list[str]]:
    faults: list[str] = []
    return list(unzip.unzipped(pieces, encoding, faults)), faults


@pytest.mark.parametrize(
    ("encoding", "body"),
    [(b"gzip", gzip.compress(TEXT)), (b"deflate", zlib.compress(TEXT)), (b"", TEXT), (b"identity", TEXT)],
)
def test_any_cut_gives_the_same_text(encoding: bytes, body: bytes) -> None:
    for size in (1, 7, len(body)):
        pieces, faults = unzipped([(i, body[i : i + size]) for i in range(0, len(body), size)], encoding)
        assert (b"".join(data for _, data in pieces), faults) == (TEXT, [])


def test_flushed_events_keep_their_own_stamps() -> None:
    deflate = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    pieces = [(at, deflate.compress(text) + deflate.flush(zlib.Z_SYNC_FLUSH)) for at, text in ((5, b"a"), (9, b"b"))]
    assert unzipped(pieces, b"gzip") == ([(5, b"a"), (9, b"b")], [])


def test_what_came_before_the_rubbish_is_kept() -> None:
    deflate = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    good = deflate.compress(b"a") + deflate.flush(zlib.Z_SYNC_FLUSH)
    pieces, faults = unzipped([(1, good), (2, b"\xff" * 20)], b"gzip")
    assert pieces == [(1, b"a")]
    assert len(faults) == 1
    assert faults[0].startswith("content-encoding gzip: ")


def test_an_encoding_that_nobody_asked_for_is_told() -> None:
    assert unzipped([(1, b"x")], b"br") == ([], ["content-encoding br was not asked for"])


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unzip, "MAX_BYTES", 1000)
    pieces, faults = unzipped([(1, gzip.compress(b"0" * 100_000))], b"gzip")
    assert pieces == []
    assert faults == ["content-encoding gzip: more than 1000 bytes"]
