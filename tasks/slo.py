"""An SLO: the bound that an indicator must keep for a fraction of its requests or tasks. deploy/slos, one file each."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from tasks import catalog, metrics, settings
from tasks.document import Document, read


class Slo(Document):
    """`indicator` is a name in the metric table; the objective is in that metric's unit."""

    indicator: str
    tier: Literal["gateway", "agent"]
    steps: Literal["all", "first", "later"] = "all"  # of agent tasks: which model calls count
    objective: float = Field(gt=0)
    unit: str
    fraction: float = Field(gt=0, lt=1)  # 0.95: the 95th percentile must keep the objective
    source: str = Field(min_length=10)  # who set the objective, or why we chose it

    @model_validator(mode="after")
    def _known_indicator(self) -> "Slo":
        known = metrics.BY_NAME
        if self.indicator not in known:
            raise ValueError(f"indicator: no metric '{self.indicator}'; known: {', '.join(sorted(known))}")
        if self.unit != known[self.indicator].unit:
            raise ValueError(f"unit: {self.indicator} is in {known[self.indicator].unit}, got {self.unit}")
        return self


def folder() -> Path:
    return settings.deploy("slos")


def names() -> list[str]:
    return catalog.names(folder(), ".yaml")


def load(name: str) -> Slo:
    """Raises UnknownName, InvalidDocument."""
    return read(catalog.path_of(folder(), name, ".yaml"), Slo)
