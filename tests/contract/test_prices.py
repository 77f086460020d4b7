"""Every file in deploy/prices says where its number is from, or that nobody has read it yet."""

import pytest

from tasks import price
from tasks.document import UNRESOLVED, InvalidDocument, parse

NAMES = price.names()
GOOD = {"says": "a machine", "usd_per_hour": 1.5, "source": "https://example.com/prices", "read_on": "2026-11-30"}


def test_what_the_project_promises_is_there() -> None:
    assert {"local-cpu", "h200", "a10g", "endpoint"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_loads_and_a_number_has_its_source(name: str) -> None:
    found = price.load(name)
    assert found.usd_per_hour == UNRESOLVED or found.usd_per_hour > 0
    assert found.usd_per_hour == UNRESOLVED or found.is_nominal or str(found.source).startswith("http")


def test_a_laptop_is_nominal_and_says_why() -> None:
    assert price.load("local-cpu").is_nominal
    assert "chosen by us" in str(price.load("local-cpu").source)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": None}, "a price needs its source"),
        ({"read_on": None}, "a price needs read_on"),
        ({"usd_per_hour": "cheap"}, "usd_per_hour"),
        ({"usd": 1}, "usd: not a known field; known: is_nominal, read_on, says, source, usd_per_hour"),
        ({"read_on": "yesterday"}, "read_on"),
    ],
)
def test_a_bad_field_is_named(change: dict[str, object], words: str) -> None:
    parse(GOOD, price.Price, source="deploy/prices/x.yaml")
    with pytest.raises(InvalidDocument, match=words):
        parse(GOOD | change, price.Price, source="deploy/prices/x.yaml")
