"""A target: where arms are deployed. A folder in deploy/targets with a target.yaml."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks import catalog, settings
from tasks.document import Document, read


class Target(Document):
    """The content of deploy/targets/<target>/target.yaml."""

    driver: str
    says: str = Field(min_length=10)  # which machine this is, for the person who picks it
    slots: list[str] = Field(min_length=1)  # one run holds one: cpu0, gpu0, gpu0+1 (the engine sees those GPUs alone)
    command: list[str] = []  # process driver: what starts the engine; a relative path is looked up in the checkout
    nice: int = Field(default=0, ge=0, le=19)  # process driver: how far the engine yields the CPU to its client
    env: dict[str, str] = {}
    gpu_model: str | None = None
    needs: list[Literal["image", "model.revision"]] = []  # what an arm must have resolved to run here


def folder() -> Path:
    return settings.deploy("targets")


def names() -> list[str]:
    return sorted(p.parent.name for p in folder().glob("*/target.yaml"))


def load(name: str) -> Target:
    """Raises UnknownName, InvalidDocument."""
    if name not in names():
        raise catalog.UnknownName(f"{folder()}: no '{name}'; known: {', '.join(names()) or 'none'}")
    return read(folder() / name / "target.yaml", Target)
