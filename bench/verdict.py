"""Did a tool report a wrong number, notice the fault, or was it right? The criteria of `python -m bench.honesty`.

A reported figure is WRONG if it is more than 5 percent from every honest value of it by the sim's record
(bench/truth.py; counts: and by more than one request, TTFT: and by more than 10 ms, largest gap: 50 ms, which is what
clients on shared cores may be late; their precision is the subject of bench/client), and if the fault did that: its
ratio to the truth is more than 5 percent from the ratio without any fault. A tool that is off without a fault is told
so in the row `none`, by the first half alone.

A tool NOTICES if what it wrote tells of the fault:
- it counts failures, there were some, and the number of its successes is not wrong;
- a line that warns, or a rule that is not met, which its run without a fault had not;
- a count of something that should be none (cached tokens, answers without usage), where it was none without the fault;
- 17: a largest gap that is not wrong. 16: a time to the first token of the answer, beside TTFT, true within 5 percent.

notices: it does, whatever its figures are: a reader is told. wrong number: it does not, and at least one figure is
wrong. right: neither. Tools differ in what they report; a figure that a tool does not have cannot be wrong.
"""

from dataclasses import dataclass

from bench.tools import Report
from bench.truth import Ranges

SHARE = 0.05
SLACK = {"succeeded": 1.0, "failed": 1.0, "ttft_ms_p50": 10.0, "gap_ms_max": 50.0}
HEADLINES = ("succeeded", "ttft_ms_p50", "itl_ms_p50", "output_tokens_per_s", "gap_ms_max")
FAILING = ("http_503", "truncated", "error_event", "refuses_load", "clean_end")


@dataclass(frozen=True)
class Seen:
    """A report and the truth of the same run. `answer_ms`: median time to the first token of an answer, in truth."""

    report: Report
    truth: Ranges
    answer_ms: float = float("nan")


@dataclass(frozen=True)
class Verdict:
    """`word`: wrong number, notices, right. `wrong`: the wrong figures; `noticed`: by what, each in words."""

    word: str
    wrong: list[str]
    noticed: list[str]


def judge(fault: str | None, seen: Seen, control: Seen) -> Verdict:
    """`control` is the same tool without a fault; for the run without a fault it is that run, and fault is None."""
    wrong = [name for name in HEADLINES if _is_wrong(name, seen, None if fault is None else control)]
    noticed = [] if fault is None else list(_noticed(fault, seen, control, wrong))
    word = "notices" if noticed and fault is not None else "wrong number" if wrong else "right"
    return Verdict(word, [_in_words(name, seen) for name in wrong], noticed)


def _is_wrong(name: str, seen: Seen, control: Seen | None) -> bool:
    reported, ranges = seen.report.figures.get(name), seen.truth.get(name)
    if reported is None or not ranges or not _is_off(name, reported, ranges):
        return False
    before = control.report.figures.get(name) if control else None
    if control is None or before is None or not control.truth.get(name):
        return True
    usual = _ratio(before, control.truth[name])
    return abs(_ratio(reported, ranges) / usual - 1) > SHARE if usual else True


def _is_off(name: str, reported: float, ranges: list[tuple[float, float]]) -> bool:
    low, high = _nearest(reported, ranges)
    near = low if reported < low else high
    distance = max(low - reported, reported - high)
    return distance > max(SHARE * abs(near), SLACK.get(name, 0.0))


def _nearest(reported: float, ranges: list[tuple[float, float]]) -> tuple[float, float]:
    return min(ranges, key=lambda pair: max(pair[0] - reported, reported - pair[1], 0.0))


def _ratio(reported: float, ranges: list[tuple[float, float]]) -> float:
    low, high = _nearest(reported, ranges)
    near = min(max(reported, low), high)
    return reported / near if near else float("inf") if reported else 1.0


def _noticed(fault: str, seen: Seen, control: Seen, wrong: list[str]) -> list[str]:
    report, figures, found = seen.report, seen.report.figures, []
    if fault in FAILING and figures.get("failed") and "succeeded" not in wrong:
        found.append(f"{figures['failed']:.0f} failed")
    found += [f"{n:.0f} {what}" for what, n in report.counts.items() if n and not control.report.counts.get(what)]
    gap = figures.get("gap_ms_max")
    if fault == "stalls" and gap is not None and "gap_ms_max" not in wrong:
        found.append(f"largest gap {gap:.0f} ms")
    if fault == "reasoning" and report.answer_ms and abs(report.answer_ms / seen.answer_ms - 1) <= SHARE:
        found.append(f"first token of the answer after {report.answer_ms:.0f} ms")
    return found or [f"says: {line}" for line in report.lines if line not in control.report.lines]


def _in_words(name: str, seen: Seen) -> str:
    reported = seen.report.figures[name]
    low, high = _nearest(reported, seen.truth[name])
    return f"{name} {_short(reported)}, in truth {_short(low if reported < low else high)}"


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.1f}"
