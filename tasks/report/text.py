"""A report in the terminal: aligned plain text, one table under the other."""

import unicodedata
from collections.abc import Iterator

from tasks.report.figures import UNKNOWN, Cell, Report, Table

WIDEST, LAST = 60, 110  # of a column, of the last one: what is longer is cut, and stands whole on the page
NONE = Cell(UNKNOWN, "muted")


def render(report: Report) -> str:
    """The whole report as text."""
    lines = [report.title, "=" * _width(report.title)]
    lines += [f"!! {words}" for words in report.alarms]
    for table in report.tables:
        lines += [] if table.is_detail else ["", *_table(table)]
    return "\n".join(lines) + "\n"


def _table(table: Table) -> Iterator[str]:
    yield table.title + (" (INVALID: not to be relied on)" if table.is_grey else "")
    if table.why:
        yield f"    not to be relied on{'' if table.is_grey else ' where marked !'}: {table.why}"
    if not table.rows:
        yield "    nothing" + (f". {table.note}" if table.note else "")
        return
    texts = [
        table.columns,
        *([*(_cut(c.text, WIDEST) for c in row[:-1]), _cut(row[-1].text, LAST)] for row in table.rows),
    ]
    widths = [max(map(_width, column)) for column in zip(*texts, strict=True)]
    is_number = [all(row[i].kind == "number" or row[i] == NONE for row in table.rows) for i in range(len(widths))]
    for number, row in enumerate(texts):
        if number or any(row):
            cells = [_padded(*place) for place in zip(row, widths, is_number, strict=True)]
            mark = "  ! " if number - 1 in table.grey_rows else "    "
            yield mark + "  ".join(cells).rstrip()
    if table.note:
        yield f"    {table.note}"


def _padded(text: str, width: int, is_number: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if is_number else text + space


def _cut(text: str, widest: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= widest else f"{line[: widest - 1]}…"


def _width(text: str) -> int:
    """Columns of the terminal that a text takes."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
