"""docs/honesty.md: each rule, who asked for it in public, how it is checked, and the test that proves it."""

from collections.abc import Iterable, Iterator

from tasks import honesty, suite

OF = {"requests": "calls", "tasks": "tasks", "golden": "golden cases", "tier": "each tier", "run": "the run"}
HEAD = """# Honesty

A result that broke a rule is stored with its reasons, shown greyed with them, and never averaged in. What is broken in
one tier takes nothing from the other; what is broken in the run takes all. `report.honesty` holds every check of every
run: what was seen, what was allowed, ids of rows that broke it, and why.

- **fault**: not met, it breaks the rule.
- **finding**: not met, it is told beside the numbers, which stand. What differs between two compared runs is one: each
  of them is honest alone, and their comparison is greyed.
- **unverified**: nobody can know, and that is told too. A check that looked at nothing is not met.

Bounds, reasons and sources stand in `deploy/expectations/`; a source is a public complaint (repository#number).
`python -m bench.clean` plays clean runs of every sim arm under different seeds and counts the alarms.
[honesty-peers.md](honesty-peers.md) shows what four other tools say of the same faults (`python -m bench.honesty`).
"""


def page() -> str:
    """The whole page, without its first line."""
    checks = [(suite.load(name).table, one) for name in suite.names() for one in suite.load(name).expectations]
    lines = [HEAD]
    for number, rule in honesty.rules().items():
        lines += [f"## Rule {number}: {rule.says}", "", f"Because {rule.because}.", ""]
        lines += [f"Asked for by: {', '.join(rule.source)}.", ""]
        lines += ["| check | of | kind | bound | why this bound |", "|---|---|---|---|---|"]
        lines += [_row(_of(table, one)) for table, one in checks if one.rule == number]
        lines += ["", f"Proven by: {', '.join(_proofs(number))}.", ""]
    return "\n".join([*lines, *_faults(), ""])


def _of(table: str, one: suite.Expectation) -> Iterator[str]:
    yield one.says
    yield f"good {OF[table]}" if one.rows == "good" else OF[table]
    yield one.kind
    yield suite.bound(one)
    yield " ".join(filter(None, [one.because, f"({', '.join(one.source)})" if one.source else ""]))


def _proofs(number: int) -> list[str]:
    told = honesty.faults()
    planted = [str(one.number) for one in told.faults if one.rule == number]
    ours = [f"`{told.test}` (planted faults {', '.join(planted)})"] if planted else []
    return ours + [f"`{path}`" for path in honesty.rules()[number].proven_by]


def _faults() -> Iterator[str]:
    told = honesty.faults()
    yield "## What becomes of each planted fault"
    yield ""
    yield f"Each is planted in the sim (docs/sim.md) by `{told.test}`, which fails without the check."
    yield ""
    yield from ("| number | fault | rule | becomes | how |", "|---|---|---|---|---|")
    for one in told.faults:
        yield _row((one.number, f"`{one.fault}`", one.rule, one.becomes.replace("_", " "), one.how))


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
