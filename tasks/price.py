"""A price: what one hour of a machine costs. One YAML file in deploy/prices; every number says where it is from."""

from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from tasks import catalog, settings
from tasks.document import Document, read


def _as_date(value: object) -> object:
    return date.fromisoformat(value) if isinstance(value, str) else value


class Price(Document):
    """`usd_per_hour` is a number, or `unresolved` until somebody reads the price list of the day."""

    says: str = Field(min_length=5)
    usd_per_hour: float | Literal["unresolved"]
    is_nominal: bool = False  # a figure we chose to make the arithmetic visible, not a market price
    source: str | None = None  # the page it was read from; for a nominal price, why this figure
    read_on: Annotated[date | None, BeforeValidator(_as_date)] = None

    @model_validator(mode="after")
    def _sourced(self) -> "Price":
        if self.usd_per_hour != "unresolved" and not self.source:
            raise ValueError("a price needs its source")
        if self.usd_per_hour != "unresolved" and self.read_on is None and not self.is_nominal:
            raise ValueError("a price needs read_on, the day it was read")
        return self


def folder() -> Path:
    return settings.deploy("prices")


def names() -> list[str]:
    return catalog.names(folder(), ".yaml")


def load(name: str) -> Price:
    """Raises UnknownName, InvalidDocument."""
    return read(catalog.path_of(folder(), name, ".yaml"), Price)
