"""`armwise stage`"""

import typer

from tasks import run
from tasks import stage as stages


def stage(
    stage: str = typer.Argument(help=f"One of: {', '.join(stages.ORDER[1:])}"),
    run_dir: str = typer.Argument(help="Run folder, or a run id (its last attempt)"),
) -> None:
    """Carry out one stage on a run folder: the same function that the DAG runs."""
    print(stages.perform(stage, run.find(run_dir)))
