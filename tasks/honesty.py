"""The rules that keep a result honest, and the planted faults that prove them: deploy/expectations/_rules.yaml and
_faults.yaml. The suites beside them (tasks/suite.py) say how each rule is checked; docs/honesty.md is written from all.
"""

from functools import cache
from typing import Literal

from pydantic import Field

from tasks import settings
from tasks.document import Document, read


class Rule(Document):
    """`source`: the public complaints that ask for it, as repository#number."""

    rule: int = Field(ge=0, le=12)
    says: str = Field(min_length=10)
    because: str = Field(min_length=20)
    source: list[str] = Field(min_length=1)
    proven_by: list[str] = []  # tests beside those of the planted faults


class Fault(Document):
    """A planted fault of the sim, and what becomes of it.

    alarm: breaks the rule. finding: told, and the numbers stand. seen_through: the numbers are right in spite of it,
    shown against the sim's own record.
    """

    number: int = Field(ge=1, le=20)
    fault: str  # its name in tasks/engines/sim/faults.py
    rule: int = Field(ge=0, le=12)
    becomes: Literal["alarm", "finding", "seen_through"]
    by: list[str] = []  # `says` of the expectations that catch it; none where it is seen through
    how: str = Field(min_length=20)


class Rules(Document):
    """The content of _rules.yaml."""

    rules: list[Rule] = Field(min_length=13, max_length=13)


class Faults(Document):
    """The content of _faults.yaml."""

    test: str  # that plants them
    faults: list[Fault] = Field(min_length=20, max_length=20)


@cache
def rules() -> dict[int, Rule]:
    """Number -> rule. Raises InvalidDocument."""
    found = read(settings.deploy("expectations") / "_rules.yaml", Rules)
    return {one.rule: one for one in found.rules}


def faults() -> Faults:
    """What becomes of each planted fault. Raises InvalidDocument."""
    return read(settings.deploy("expectations") / "_faults.yaml", Faults)
