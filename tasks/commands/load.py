"""`armwise load`: store a run folder, copied from a machine without a database or left by a database that was away."""

from typing import Annotated

import typer


def load(
    folder: Annotated[str, typer.Argument(help="a run folder, or the id of a run under the state folder")],
) -> None:
    """Store a run folder's rows, then judge it. Loading twice changes nothing."""
    from tasks import run, stage

    run_dir = run.find(folder)
    todo = ["load", "judge"] if (run_dir / "validation.json").exists() else ["validate", "load", "judge"]
    for name in todo:
        stage.perform(name, run_dir)
    print(f"stored: {run_dir}")
