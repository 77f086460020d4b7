"""`armwise pin`"""

import os
from datetime import date

import typer

from tasks import pin as pins


def pin(
    arm: str = typer.Argument("", help="Resolve this arm, its control and the arms compared with it."),
    image: str = typer.Option("", help="REPOSITORY:TAG to resolve; default: the engine's own, of the arm's version."),
    price: str = typer.Option("", help="Set a price instead: KEY=USD_PER_HOUR."),
    source: str = typer.Option("", help="The page that the price was read from."),
) -> None:
    """Write model revisions and image digests, or a price, into the files that leave them unresolved."""
    if bool(arm) == bool(price):
        raise pins.NotPinned("say either which ARM to resolve, or --price KEY=USD_PER_HOUR --source URL")
    if price:
        path = pins.pin_price(*_price(price), source=source, today=date.today())
        print(f"{path}: set; read on {date.today().isoformat()} from {source}")
        return
    defaults = pins.Sources()
    hub, registry = os.environ.get("HF_ENDPOINT"), os.environ.get("ARMWISE_REGISTRY")
    sources = pins.Sources(hub=hub or defaults.hub, registry=registry or defaults.registry)
    written = pins.pin(arm, image=image or None, sources=sources)
    for file, values in written.items():
        for key, value in values.items():
            print(f"{file}: {key}: {value}")
    if not written:
        print(f"{arm}: nothing is unresolved")


def _price(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError as error:
        raise pins.NotPinned(f"--price: must be KEY=USD_PER_HOUR, found {text!r}") from error
