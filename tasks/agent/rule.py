"""What a text must say, in any wording: the rules by which a golden case judges a query, a title or an answer.

A text is judged by its words: case, punctuation and line breaks do not count, a thousands separator is no separator
(204,584 is 204584) and a euro sign reads as the word eur. A phrase holds if its words stand in the text side by side; a
phrase word that ends in * stands for every word that begins so. So a name must be whole, and 24 is not found in 2024.

`chooses` judges a comparison. Every mention of an adjective is given to the name that stands last before it in the same
sentence, else to the first behind it. "The older of A and B is B" is read wrongly: no name stands before the adjective.
"""

import re
import unicodedata

from pydantic import model_validator

from tasks.document import Document

_THOUSANDS = re.compile("(?<![\\d.,])\\d{1,3}(?:[,.'\u2019\u00a0\u202f\u2009]\\d{3})+(?!\\d)")
_WORD = re.compile(r"[^\W_]+\*?")
_SENTENCE_END = re.compile(r"[.!?;]\s")


class Choice(Document):
    """`one` is what `adjectives` say, `other` is what `opposites` say."""

    one: str
    other: str
    adjectives: list[str]
    opposites: list[str] = []


class Rule(Document):
    """Kept by a text that holds every entry of all_of (a list is a choice), one of any_of, and none of none_of."""

    all_of: list[str | list[str]] = []
    any_of: list[str] = []
    none_of: list[str] = []
    chooses: Choice | None = None

    @model_validator(mode="after")
    def _says_something(self) -> "Rule":
        if not (self.all_of or self.any_of or self.none_of or self.chooses):
            raise ValueError("a rule must demand something: give all_of, any_of, none_of or chooses")
        phrases = [p for entry in [*self.all_of, self.any_of, self.none_of] for p in _options(entry)]
        empty = [p for p in phrases if not words(p)]
        if empty:
            raise ValueError(f"a phrase needs a word, found {empty[0]!r}")
        return self


def words(text: str) -> list[str]:
    """The words of a text, as rules see them."""
    joined = _THOUSANDS.sub(lambda m: re.sub(r"\D", "", m.group()), text)
    return _WORD.findall(unicodedata.normalize("NFKC", joined).casefold().replace("\u20ac", " eur "))


def fault(rule: Rule, text: str) -> str | None:
    """What the text lacks, in words; None if it keeps the rule."""
    found = [word.rstrip("*") for word in words(text)]
    for entry in rule.all_of:
        options = _options(entry)
        if not any(_holds(found, option) for option in options):
            return f"lacks {' or '.join(map(repr, options))}"
    if rule.any_of and not any(_holds(found, phrase) for phrase in rule.any_of):
        return f"lacks every one of {', '.join(map(repr, rule.any_of))}"
    for phrase in rule.none_of:
        if _holds(found, phrase):
            return f"holds {phrase!r}"
    return _wrong_choice(rule.chooses, text) if rule.chooses else None


def _options(entry: str | list[str]) -> list[str]:
    return [entry] if isinstance(entry, str) else entry


def _holds(found: list[str], phrase: str) -> bool:
    return bool(_places(found, phrase))


def _places(found: list[str], phrase: str) -> list[int]:
    """Indexes at which the phrase begins."""
    wanted = words(phrase)
    last = len(found) - len(wanted)
    return [i for i in range(last + 1) if all(_same(f, w) for f, w in zip(found[i:], wanted, strict=False))]


def _same(found: str, wanted: str) -> bool:
    return found.startswith(wanted[:-1]) if wanted.endswith("*") else found == wanted


def _wrong_choice(choice: Choice, text: str) -> str | None:
    given = [
        (adjective, owner, right)
        for sentence in _SENTENCE_END.split(text)
        for adjectives, right in ((choice.adjectives, choice.one), (choice.opposites, choice.other))
        for adjective, owner in _owners(sentence, adjectives, (choice.one, choice.other))
    ]
    for adjective, owner, right in given:
        if owner != right:
            return f"says {adjective!r} of {owner!r}, it is {right!r}"
    return None if given else f"does not say which one is {choice.adjectives[0]!r}"


def _owners(sentence: str, adjectives: list[str], names: tuple[str, str]) -> list[tuple[str, str]]:
    """(adjective, the name it is said of) for every mention in one sentence that names anyone."""
    found = words(sentence)
    named = sorted((i, name) for name in names for i in _places(found, name))
    if not named:
        return []
    places = [(i, adjective) for adjective in adjectives for i in _places(found, adjective)]
    return [(adjective, next((n for at, n in reversed(named) if at < i), named[0][1])) for i, adjective in places]
