"""`armwise report`"""

from typing import Annotated

import typer


def report(
    run: Annotated[str, typer.Argument(help="id or folder of a run; the latest one if left out")] = "",
) -> None:
    """Print a run's verdicts, costs, latencies, gate and times, and write them as one HTML page."""
    from tasks.report import of_run, page, text

    found = of_run.build(*_identity(run))
    print(text.render(found))
    print(f"page: {page.write(found)}")


def _identity(name: str) -> tuple[str | None, int | None]:
    """(run id, attempt) of a folder; of an id the attempt is left open."""
    from pathlib import Path

    from tasks import run as runs

    if name and (Path(name) / "run.json").exists():
        found = runs.read(Path(name))
        return found.run_id, found.attempt
    return name or None, None
