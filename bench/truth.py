"""What a client of the sim must have seen, from the sim's own record: figures as ranges that an honest report may
give.

A figure has often more than one honest definition, so each is a list of (low, high): a report is true if it is near
any of them. A median of an even number of values is anything between the middle two; a rate may count the tokens of
all answers or of whole ones only; the time between tokens of an answer may leave out the tokens of the first chunk.
`itl_ms_p50` is time between tokens, so the gap between chunks of several tokens is no definition of it.

An answer is whole if its finish reason was sent; one that was refused or broken off is not.
"""

import math
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from tasks.engines.sim import record

Line = dict[str, Any]
Ranges = dict[str, list[tuple[float, float]]]


def read(path: Path, *, skip: int, first_id: str | None = None) -> tuple[list[Line], int]:
    """Requests in the order of their arrival, and how many more were refused (those have a number and no line).

    Without the first `skip` that reached the server. Where it is known which answer was the first to end of those that
    the tool counts, `first_id`, without those that ended before it.
    """
    lines = record.read(path)
    found = sorted((line for line in lines if line["what"] == "request"), key=lambda line: line["number"])
    first_ns = next((_ended_ns(line) for line in found if first_id and line["id"] == first_id), None)
    if first_ns is None:
        found = [line for line in found if line["number"] > skip]
    else:
        found = [line for line in found if _ended_ns(line) >= first_ns]
        skip = min(line["number"] for line in found) - 1
    known = {line["number"] for line in lines if line["what"] == "request"}
    numbers = max((line["number"] for line in lines if "number" in line), default=0)
    return found, len(set(range(skip + 1, numbers + 1)) - known)


def _ended_ns(line: Line) -> int:
    return int(max((stamp[0] for stamp in line["sent"]), default=line["arrived_ns"]))


def ranges(lines: list[Line], refused: int) -> Ranges:
    """Figure -> what it may be. Times in ms, rates per second. A figure of nothing has no range."""
    whole, begun = [line for line in lines if is_whole(line)], [line for line in lines if _tokens(line)]
    found: Ranges = {
        "succeeded": [(len(whole), len(whole))],
        "failed": [(len(lines) - len(whole) + refused,) * 2],
        "ttft_ms_p50": [_middle(map(first_ms, whole)), _middle(map(first_ms, begun)), _middle(map(_answer_ms, whole))],
        "itl_ms_p50": [_middle(filter(None, (of(line) for line in whole))) for of in (_itl_ms, _later_itl_ms)],
        "output_tokens_per_s": [_rate(whole, lines), _rate(begun, lines)],
        "gap_ms_max": [(largest, largest) for largest in (_largest_gap_ms(whole), _largest_gap_ms(begun))],
    }
    return {name: [one for one in some if not math.isnan(one[0])] for name, some in found.items()}


def is_whole(line: Line) -> bool:
    return any(what == "finish" for _, what, *_ in line["sent"])


def first_ms(line: Line) -> float:
    """From the arrival of the request to its first token, of whatever kind."""
    return float(_tokens(line)[0][0] - line["arrived_ns"]) / 1e6


def answer_ms(lines: list[Line]) -> float:
    """Median time to the first token of an answer."""
    return _middle(map(_answer_ms, filter(is_whole, lines)))[1]


def without(lines: list[Line], count: int) -> list[Line]:
    """All but the `count` whose first token was sent first: a planted first wave."""
    return sorted((line for line in lines if _tokens(line)), key=lambda line: _tokens(line)[0][0])[count:]


def _answer_ms(line: Line) -> float:
    """To the first token that is not of the reasoning, which has 20 tokens where it is planted."""
    skip, tokens = 20 if "reasoning" in line["faults"] else 0, 0
    for at_ns, count in _tokens(line):
        tokens += count
        if tokens > skip:
            return float(at_ns - line["arrived_ns"]) / 1e6
    return math.nan


def _tokens(line: Line) -> list[tuple[int, int]]:
    return [(at_ns, tokens) for at_ns, what, tokens, _ in line["sent"] if what == "tokens"]


def _itl_ms(line: Line) -> float | None:
    return _between(line, 1)


def _later_itl_ms(line: Line) -> float | None:
    return _between(line, _tokens(line)[0][1])


def _between(line: Line, first: int) -> float | None:
    stamps = _tokens(line)
    later = sum(tokens for _, tokens in stamps) - first
    return (stamps[-1][0] - stamps[0][0]) / 1e6 / later if later > 0 else None


def _largest_gap_ms(lines: list[Line]) -> float:
    stamps = [[at_ns for at_ns, _ in _tokens(line)] for line in lines]
    return max((float(b - a) / 1e6 for ats in stamps for a, b in pairwise(ats)), default=math.nan)


def _rate(counted: list[Line], lines: list[Line]) -> tuple[float, float]:
    """Tokens of some answers in the time from the first arrival to the last event of all."""
    if not lines:
        return math.nan, math.nan
    began, ended = min(line["arrived_ns"] for line in lines), max(s[0] for line in lines for s in line["sent"])
    rate = sum(tokens for line in counted for _, tokens in _tokens(line)) / ((ended - began) / 1e9)
    return rate, rate


def _middle(values: Iterable[float]) -> tuple[float, float]:
    ordered = sorted(values)
    if not ordered:
        return math.nan, math.nan
    return ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
