"""`armwise sql`: ask the database one question, and get CSV."""

import csv
import json
import os
import sys
from datetime import datetime
from typing import Annotated, Any

import typer


def sql(
    statement: Annotated[str, typer.Argument(help="one statement that only reads; views are in schema report")],
) -> None:
    """Run one statement under a role that can only read; prints CSV. A null is an empty field."""
    from tasks.read_only import ask

    out = csv.writer(sys.stdout, lineterminator="\n")
    try:
        for row in ask(statement):
            out.writerow([_text(value) for value in row])
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _text(value: Any) -> Any:
    """As Postgres writes it, where Python would write something else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime):
        return value.isoformat()
    return json.dumps(value) if isinstance(value, dict | list) else value
