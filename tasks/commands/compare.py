"""`armwise compare`"""

from typing import Annotated

import typer


def compare(
    control: Annotated[str, typer.Argument(help="an arm (its latest valid run is taken) or the id of a run")],
    arm: Annotated[str, typer.Argument(help="an arm (its latest valid run is taken) or the id of a run")],
) -> None:
    """Print control and arm side by side, and write them as one HTML page."""
    from tasks.report import of_pair, page, text

    found = of_pair.build(control, arm)
    print(text.render(found))
    print(f"page: {page.write(found)}")
