"""The table of bench/honesty as text, and the page docs/honesty-peers.md that is made of it."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tasks.engines.sim.faults import TABLE

if TYPE_CHECKING:
    from bench.honesty import Row

MOST = 160  # characters of a cell
SHORT = {"wrong number": "WRONG", "notices": "notices", "right": "right"}
HEAD = """# Planted faults, and who notices

<!-- written by `python -m bench.honesty --markdown docs/honesty-peers.md`; not by hand -->

Each tool met the planted faults of the simulated server ([sim.md](sim.md)) one at a time, each on a fresh server,
with the same users, prompts and output length. WRONG: a reported figure is not what the server did, and nothing in
the output tells. notices: the output tells of the fault; (*) a figure is wrong all the same. right: neither. The
criteria are at the top of `bench/verdict.py`, what is true at the top of `bench/truth.py`, the command lines in
`bench/tools.py`.
"""
OUTRO = """
## How to read it

- One run per cell, on a shared machine of two cores. A cell can change between runs; what the tool wrote and what the
  server recorded stays in the bench's output folder, and `--judge-only` makes this page from it again.
- A fault that a tool does not notice and that moves none of its figures is `right`: nothing false was said.
- guidellm has no figure of a single gap (its inter-token latency is a mean per request), so it cannot be wrong about a
  stall, and cannot show one.
- Row `none` says how far each tool is off without a fault.
- The server is simulated: figures are compared with its own record, and say nothing about any model or GPU.
- inference-perf has no warm-up; the others were given one of 16 requests, which is longer than the planted slow wave.
- Our own column is a whole `armwise run` without the gate. Its report gives no output tokens per second.
"""


def table(rows: "list[Row]", names: list[str], faults: tuple[str, ...]) -> str:
    """One line per fault, one column per tool; then why, line by line."""
    found = {(row.tool, row.fault): row for row in rows}
    head = f"{'fault':20}" + "".join(f"{name:>18}" for name in names)
    lines = [f"{_label(fault):20}" + "".join(f"{_word(found[n, fault]):>18}" for n in names) for fault in faults]
    whys = [f"{row.tool:15} {row.fault:16} {why}" for row in rows if (why := _why(row))]
    return "\n".join([head, *lines, "", *whys])


def page(rows: "list[Row]", names: list[str], faults: tuple[str, ...], versions: dict[str, str]) -> str:
    """The whole of docs/honesty-peers.md."""
    found = {(row.tool, row.fault): row for row in rows}
    said = ", ".join(f"{name} {versions[name]}" for name in names)
    parts = [HEAD, f"Measured on {datetime.now(UTC):%Y-%m-%d}: {said} (vllm: `vllm bench serve`).\n"]
    parts += [f"Load average when a run ended, least to most: {'; '.join(_loads(rows, name) for name in names)}.\n"]
    parts += ["| fault | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    parts += [f"| {_label(f)} | " + " | ".join(_word(found[n, f]) for n in names) + " |" for f in faults]
    parts += ["\n## Why\n", "| fault | tool | verdict | wrong | told by |", "|---|---|---|---|---|"]
    for fault in faults:
        for name in names:
            row = found[name, fault]
            if row.verdict.wrong or row.verdict.noticed:
                wrong, told = "; ".join(row.verdict.wrong), "; ".join(row.verdict.noticed)
                parts.append(f"| {_label(fault)} | {name} | {_word(row)} | {_cell(wrong)} | {_cell(told)} |")
    return "\n".join(parts) + "\n" + OUTRO


def _loads(rows: "list[Row]", name: str) -> str:
    loads = [row.load_average for row in rows if row.tool == name]
    return f"{name} {min(loads):.1f} to {max(loads):.1f}"


def _label(fault: str) -> str:
    return f"{TABLE[fault].number} {fault}" if fault in TABLE else fault


def _word(row: "Row") -> str:
    is_wrong_too = row.verdict.word == "notices" and row.verdict.wrong
    return SHORT[row.verdict.word] + (" (*)" if is_wrong_too else "")


def _why(row: "Row") -> str:
    wrong, told = "; ".join(row.verdict.wrong), "; ".join(row.verdict.noticed)
    return " | ".join(filter(None, [f"wrong: {wrong}" if wrong else "", f"told: {told}" if told else ""]))


def _cell(text: str) -> str:
    return text.replace("|", "/")[:MOST]
