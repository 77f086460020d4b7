"""A plan: what is measured, how long, under which SLOs. One YAML file in deploy/plans."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from tasks import catalog, settings, slo
from tasks.document import Document, read

MOST_LEVELS = 32
MOST_ARRIVALS = 1_000_000  # of a level; they are drawn before it begins


class Level(Document):
    """One offered load: exactly one of `users` (closed loop) and `rate_per_s` (open loop).

    A closed loop has so many users, each starting its next call or task when the last one ended. An open loop starts
    one at each of its arrivals, whatever is still in flight; with `ramp_to_per_s` its rate grows or falls evenly over
    the level. `burstiness` is the coefficient of variation of gamma arrivals: 1 is poisson, more is burstier.
    """

    users: int | None = Field(default=None, ge=1)
    rate_per_s: float | None = Field(default=None, gt=0)
    arrivals: Literal["constant", "poisson", "gamma"] | None = None
    burstiness: float | None = Field(default=None, gt=0, le=10)
    ramp_to_per_s: float | None = Field(default=None, gt=0)
    duration_s: float = Field(gt=0)
    warmup_s: float = Field(default=0, ge=0)  # the least: rows sent before never count; where warm-up ends is found
    overload: bool = False  # more than the server can do, on purpose: its growing queue is the result

    @model_validator(mode="after")
    def _one_shape(self) -> "Level":
        if (self.users is None) == (self.rate_per_s is None):
            raise ValueError(f"give exactly one of users (closed loop) and rate_per_s (open loop); {_load(self)}")
        _known_arrivals(self.rate_per_s is not None, self.arrivals, self.burstiness)
        if self.users is not None and self.ramp_to_per_s is not None:
            raise ValueError("ramp_to_per_s: a closed loop has no rate; give it with rate_per_s")
        if self.warmup_s >= self.duration_s:
            raise ValueError(f"warmup_s: must be less than duration_s ({self.duration_s:g}), got {self.warmup_s:g}")
        most = max(self.rate_per_s or 0, self.ramp_to_per_s or 0) * self.duration_s
        if most > MOST_ARRIVALS:
            raise ValueError(f"rate_per_s: makes about {most:.0f} arrivals, a level has at most {MOST_ARRIVALS}")
        return self

    @property
    def says(self) -> str:
        """The offered load in words: `4 users`, `2.5/s poisson`."""
        if self.rate_per_s is None:
            return f"{self.users} user{'s' if self.users != 1 else ''}"
        ramp = "" if self.ramp_to_per_s is None else f" to {self.ramp_to_per_s:g}/s"
        return f"{self.rate_per_s:g}/s{ramp} {self.arrivals}"


def _load(level: Level) -> str:
    return "found neither" if level.users is None else f"found users {level.users} and rate_per_s {level.rate_per_s:g}"


def _known_arrivals(is_open: bool, arrivals: str | None, burstiness: float | None) -> None:
    if is_open and arrivals is None:
        raise ValueError("arrivals: is missing: an open loop needs constant, poisson or gamma")
    if not is_open and arrivals is not None:
        raise ValueError(f"arrivals: a closed loop has none, found {arrivals!r}; give it with a rate")
    if (arrivals == "gamma") != (burstiness is not None):
        raise ValueError("burstiness: is for arrivals: gamma, and gamma needs it (1 is poisson, above it bursts)")


class Sweep(Document):
    """Levels made from one: `start`, times `factor` each, up to `most`. The tier ends after an over-saturated level.

    Over-saturated is a level whose queue grows: tasks/traffic/saturation.py has the criterion.
    """

    over: Literal["users", "rate_per_s"]
    start: float = Field(gt=0)
    factor: float = Field(gt=1)
    most: float = Field(gt=0)
    arrivals: Literal["constant", "poisson", "gamma"] | None = None
    burstiness: float | None = Field(default=None, gt=0, le=10)
    duration_s: float = Field(gt=0)
    warmup_s: float = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _steps_up(self) -> "Sweep":
        if self.most < self.start:
            raise ValueError(f"most: must be at least start ({self.start:g}), got {self.most:g}")
        _known_arrivals(self.over == "rate_per_s", self.arrivals, self.burstiness)
        loads = self._loads()
        if len(loads) > MOST_LEVELS:
            raise ValueError(f"factor: makes more than {MOST_LEVELS} levels")
        if self.over == "users" and any(load != int(load) for load in (self.start, self.most)):
            raise ValueError("start, most: users are whole numbers")
        if self.warmup_s >= self.duration_s:
            raise ValueError(f"warmup_s: must be less than duration_s ({self.duration_s:g}), got {self.warmup_s:g}")
        return self

    def _loads(self) -> list[float]:
        """At most one more than MOST_LEVELS of them; users are rounded, and each number comes once."""
        loads: list[float] = []
        load = self.start
        while load <= self.most * (1 + 1e-9) and len(loads) <= MOST_LEVELS:
            found = round(load) if self.over == "users" else round(load, 6)
            loads += [] if loads and loads[-1] == found else [found]
            load *= self.factor
        return loads

    def levels(self) -> list[Level]:
        """One level per load, in order."""
        rest = {"arrivals": self.arrivals, "burstiness": self.burstiness}
        times = {"duration_s": self.duration_s, "warmup_s": self.warmup_s}
        return [Level(**{self.over: load}, **rest, **times) for load in self._loads()]  # type: ignore[arg-type]


class Tier(Document):
    """Give `levels`, or a `sweep` that makes them; what is stored has both."""

    levels: list[Level] = Field(default=[], min_length=1)
    sweep: Sweep | None = None
    replay: bool = False  # agent tier: play the golden set's recorded trajectories instead of the live agent
    document_words: int = Field(default=0, ge=0, le=100_000)  # replay: of each session's own document, before all else
    think_s: float = Field(default=0, ge=0)  # a user's pause before the next call, task or message of a session
    tool_s: float = Field(default=0, ge=0)  # agent tier: what each tool use takes, beside the tool itself
    output_tokens: int | None = Field(default=None, ge=1)  # gateway tier: every answer has exactly so many
    processes: int = Field(default=1, ge=1, le=64)  # of the client; one fills about one core
    drain_s: float = Field(default=30, gt=0)  # how long calls in flight may still end when the level's time is up
    max_tokens: int = Field(default=256, ge=1)
    calibrate_s: float = Field(default=2, ge=0, le=60)  # null calibration before the load; 0 needs the reason
    not_calibrated_because: str | None = Field(default=None, min_length=10)

    @model_validator(mode="after")
    def _is_calibrated_or_says_why(self) -> "Tier":
        if (self.calibrate_s == 0) != (self.not_calibrated_because is not None):
            raise ValueError(
                "calibrate_s, not_calibrated_because: 0 seconds need a reason, and a reason needs 0 seconds"
            )
        return self

    @model_validator(mode="after")
    def _has_levels(self) -> "Tier":
        if self.sweep is None and not self.levels:
            raise ValueError("levels: is missing: give levels, or a sweep that makes them")
        made = self.sweep.levels() if self.sweep else self.levels
        if self.levels and self.levels != made:
            raise ValueError("levels, sweep: give one of them: a sweep makes the levels")
        object.__setattr__(self, "levels", made)  # frozen for everybody else
        return self

    @model_validator(mode="after")
    def _fits_processes(self) -> "Tier":
        few = [level.users for level in self.levels if level.users is not None and level.users < self.processes]
        if few:
            raise ValueError(f"processes: {self.processes} cannot share a level of {min(few)} users")
        if self.output_tokens and self.output_tokens > self.max_tokens:
            raise ValueError(f"output_tokens: must be at most max_tokens ({self.max_tokens}), got {self.output_tokens}")
        return self


class Tiers(Document):
    gateway: Tier
    agent: Tier

    @model_validator(mode="after")
    def _each_its_own(self) -> "Tiers":
        if self.gateway.replay:
            raise ValueError("gateway.replay: a trajectory has several steps: only the agent tier replays")
        if self.gateway.document_words or (self.agent.document_words and not self.agent.replay):
            raise ValueError(
                "document_words: only replayed sessions have a document; give it in agent with replay: true"
            )
        if self.gateway.tool_s:
            raise ValueError("gateway.tool_s: isolated calls use no tools; give it in the agent tier")
        if self.agent.output_tokens:
            raise ValueError(
                "agent.output_tokens: a live agent's answers are as long as they must be; `replay: true` fixes lengths"
            )
        if self.gateway.think_s and any(level.rate_per_s for level in self.gateway.levels):
            raise ValueError("gateway.think_s: in an open loop the arrivals say when; give it with users")
        if self.agent.think_s and not self.agent.replay and any(level.rate_per_s for level in self.agent.levels):
            raise ValueError("agent.think_s: in an open loop only a replayed session has pauses; give it with users")
        return self


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
