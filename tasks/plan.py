"""A plan: what is measured, how long, under which SLOs. One YAML file in deploy/plans."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from tasks import catalog, settings, slo
from tasks.document import Document, read


class Level(Document):
    """One offered load: a closed loop of `users`, each starting its next call or task when the last one ended."""

    users: int = Field(ge=1)
    duration_s: float = Field(gt=0)
    warmup_s: float = Field(default=0, ge=0)  # rows sent before are stored and marked, and never counted


class Tier(Document):
    levels: list[Level] = Field(min_length=1)
    drain_s: float = Field(default=30, gt=0)  # how long calls in flight may still end when the level's time is up
    max_tokens: int = Field(default=256, ge=1)


class Tiers(Document):
    gateway: Tier
    agent: Tier


class Gate(Document):
    """`none_because` skips the gate and says why; the run is then marked ungated everywhere."""

    none_because: str | None = Field(default=None, min_length=10)
    golden_set: str = "v1"
    at_once: int = Field(default=4, ge=1)
    min_pass_rate: float = Field(default=0.95, gt=0, le=1)
    timeout_s: float = Field(default=600, gt=0)  # of the whole gate


class Budget(Document):
    """Seconds that each part of a run may take. Their sum is the hard limit of the lease."""

    start_s: float = Field(default=300, gt=0)
    gate_s: float = Field(default=600, gt=0)
    drive_s: float = Field(default=900, gt=0)  # both tiers together
    release_s: float = Field(default=60, gt=0)
    grace_s: float = Field(default=60, gt=0)  # silence of the holder after which the lease is lost


class Plan(Document):
    """The content of one file in deploy/plans."""

    purpose: str = Field(min_length=10)
    seed: int
    tiers: Tiers
    slos: list[str] = []
    gate: Gate = Gate()
    budget: Budget = Budget()
    max_failure_ratio: float = Field(default=0.05, ge=0, le=1)  # of a tier's requests; beyond it the run is invalid
    spend_cap_usd: float | None = Field(default=None, gt=0)
    fail_on: list[Literal["slo_fail", "gate_fail", "invalid"]] = []

    @model_validator(mode="after")
    def _known_slos(self) -> "Plan":
        unknown = sorted(set(self.slos) - set(slo.names()))
        if unknown:
            raise ValueError(f"slos: no '{', '.join(unknown)}'; known: {', '.join(slo.names())}")
        return self


def folder() -> Path:
    return settings.deploy("plans")


def names() -> list[str]:
    return catalog.names(folder(), ".yaml")


def load(name: str) -> Plan:
    """Raises UnknownName, InvalidDocument."""
    return read(catalog.path_of(folder(), name, ".yaml"), Plan)
