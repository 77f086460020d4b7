"""Rules: what a text says, in any wording; and what only looks as if it said it."""

import pytest

from tasks.agent.rule import Choice, Rule, fault, words
from tasks.document import InvalidDocument, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Port HEFI,\n204,584!", ["port", "hefi", "204584"]),
        ("204 584", ["204", "584"]),  # a plain space may stand between two numbers
        ("204\u202f584 and 1'000'000", ["204584", "and", "1000000"]),
        ("version 8.2.6", ["version", "8", "2", "6"]),
        ("in 1885,1996", ["in", "1885", "1996"]),
        ("24 \u20ac", ["24", "eur"]),
        ("08:30 to 20:30", ["08", "30", "to", "20", "30"]),
        ("ＦＵＬＬ width", ["full", "width"]),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("rule", "text", "keeps"),
    [
        (Rule(all_of=["Port Hefi", "204584"]), "port hefi has 204,584 people", True),
        (Rule(all_of=["Port Hefi", "204584"]), "Hefi Port has 204584 people", False),
        (Rule(all_of=["Port Hefi"]), "Support Hefi", False),
        (Rule(all_of=["24"]), "in 2024 it was 240", False),
        (Rule(all_of=["500"]), "1,500 people", False),
        (Rule(all_of=[["24 eur*", "eur* 24"]]), "It costs \u20ac24.", True),
        (Rule(all_of=[["24 eur*", "eur* 24"]]), "It costs 24 Euro", True),
        (Rule(all_of=[["24 eur*", "eur* 24"]]), "It costs 24 dollars", False),
        (Rule(any_of=["founder*", "started by"]), "Who are the founders of X", True),
        (Rule(any_of=["founder*", "started by"]), "Who founded X", False),
        (Rule(any_of=["added"], none_of=["error"]), "added, with an error", False),
        (Rule(all_of=["found*"]), "fun", False),
        (Rule(all_of=["x"]), "", False),
    ],
)
def test_fault(rule: Rule, text: str, keeps: bool) -> None:
    assert (fault(rule, text) is None) is keeps


CHOICE = Rule(chooses=Choice(one="Besto Software", other="Mev Ltd", adjectives=["older"], opposites=["newer"]))


@pytest.mark.parametrize(
    "text",
    [
        "Besto Software is older.",
        "Mev Ltd dates from 1996 and Besto Software from 1885, so Besto Software is older than Mev Ltd.",
        "The older one is Besto Software. Mev Ltd was founded in 1996.",
        "Mev Ltd (1996) is newer; Besto Software (1885) is the older company.",
        "Which is older? Besto Software is older.",
    ],
)
def test_right_choice(text: str) -> None:
    assert fault(CHOICE, text) is None


@pytest.mark.parametrize(
    "text",
    [
        "Mev Ltd is older than Besto Software.",
        "It is 1885 for Besto Software and 1996 for Mev Ltd. 1885 is less, so Mev Ltd is older.",
        "Besto Software is newer.",
        "The older one is Mev Ltd, not Besto Software.",
        "Besto Software dates from 1885, Mev Ltd from 1996.",
        "It is older.",
        "",
    ],
)
def test_wrong_choice(text: str) -> None:
    assert fault(CHOICE, text)


def test_a_rule_that_demands_nothing_is_refused() -> None:
    for content in ({}, {"all_of": ["?!"]}, {"any_of": []}):
        with pytest.raises(InvalidDocument, match="here"):
            parse(content, Rule, source="here")


def test_a_choice_alone_is_a_demand() -> None:
    assert parse({"chooses": {"one": "A", "other": "B", "adjectives": ["older"]}}, Rule, source="here").chooses
