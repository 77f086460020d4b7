"""Every kind of backend, whatever the folder holds."""

from types import ModuleType
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import catalog
from tasks.gateway import backends
from tasks.gateway.backends import Ending

KINDS = [catalog.module_of(backends, name) for name in catalog.module_names(backends)]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.rpartition(".")[2])


def test_the_folder_is_not_empty() -> None:
    assert "openai" in catalog.module_names(backends)


@every_kind
@pytest.mark.parametrize("base", ["http://127.0.0.1:8000", "https://host.example/prefix"])
def test_the_chat_url_stays_at_the_base_however_it_is_written(kind: ModuleType, base: str) -> None:
    urls = {kind.chat_url(written) for written in (base, base + "/", base + "/v1", base + "/v1/")}
    assert len(urls) == 1
    assert urls.pop().startswith(base + "/")
    assert urlsplit(kind.chat_url(base)).netloc == urlsplit(base).netloc


@every_kind
def test_a_key_travels_in_the_headers_and_no_key_sends_none(kind: ModuleType) -> None:
    assert kind.headers(None) == {}
    assert "key-of-the-arm" in "".join(kind.headers("key-of-the-arm").values())
    assert all(name == name.lower() for name in kind.headers("k"))


@every_kind
def test_every_example_is_read(kind: ModuleType) -> None:
    assert any(ending.output_tokens for _, ending in kind.EXAMPLES)
    for tail, ending in kind.EXAMPLES:
        assert kind.ending(tail) == ending


@every_kind
def test_an_example_is_found_behind_anything(kind: ModuleType) -> None:
    for tail, ending in kind.EXAMPLES:
        found = kind.ending(b'{"usage":{"prompt_tokens":999}}\xff\x00 half an event\n' + tail)
        if ending.input_tokens is not None:
            assert (found.input_tokens, found.output_tokens) == (ending.input_tokens, ending.output_tokens)


@every_kind
@given(cut=st.integers(0, 400), noise=st.binary(max_size=200))
def test_whatever_the_bytes_it_never_raises(kind: ModuleType, cut: int, noise: bytes) -> None:
    for tail, _ in kind.EXAMPLES:
        assert isinstance(kind.ending(tail[:cut] + noise), Ending)
        assert isinstance(kind.ending(noise + tail[cut:]), Ending)


@every_kind
def test_counts_that_are_no_counts_are_none(kind: ModuleType) -> None:
    for bad in (b"-1", b"true", b'"7"', b"null", b"1.5", b"{}"):
        tail = b'data: {"usage":{"prompt_tokens":%s,"completion_tokens":%s,"prompt_tokens_details":%s}}\n\n'
        found = kind.ending(tail % (bad, bad, bad))
        assert (found.input_tokens, found.output_tokens, found.cached_input_tokens) == (None, None, None)
