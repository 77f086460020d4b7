"""What a tier sends and in which order: a pure function of the golden set, the plan, its seed and the repeat.

So it is the same for every arm, and the hash of it says so: `digest` is over the golden set (or the trajectories), what
the plan asks of the tier, every arrival of an open loop, and the first turns of each user of a closed one; how many of
those a user gets to depends on the server. Alike digests are alike work. A repeat draws anew: compare arms within one.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from tasks.agent import golden, trajectory
from tasks.plan import Tier
from tasks.run import Run
from tasks.traffic import schedule, work

TURNS = 100  # of each user of a closed loop, in the digest
SHAPE = ("levels", "replay", "document_words", "think_s", "tool_s", "output_tokens", "max_tokens")


class Arrival(NamedTuple):
    """One call or task of an open loop."""

    number: int  # in its level, 0 up
    offset_ns: int  # from the level's start
    case: Any
    session: str


def cases(run: Run, tier: str) -> Sequence[Any]:
    """What a tier draws from: cases, or trajectories where it replays them."""
    version = run.plan.gate.golden_set
    return trajectory.load(version) if _plan(run, tier).replay else work.sendable(version)


def of_user(run: Run, tier: str, drawn: Sequence[Any], *, level: int, user: int) -> tuple[Iterator[Any], Iterator[str]]:
    """What a user of a closed loop plays, and the names of its sessions."""
    place = f"{tier}/level {level}/user {user}"
    return work.endless(drawn, run.rng(place)), work.sessions(run.rng(f"{place}/sessions"))


def of_level(run: Run, tier: str, drawn: Sequence[Any], *, level: int) -> list[Arrival]:
    """Every arrival of an open-loop level, in order; none of a closed loop."""
    offered = _plan(run, tier).levels[level - 1]
    if offered.rate_per_s is None:
        return []
    place = f"{tier}/level {level}"
    offsets = schedule.arrivals_ns(offered, run.rng(f"{place}/arrivals"))
    order = work.endless(drawn, run.rng(f"{place}/cases"))
    names = work.sessions(run.rng(f"{place}/sessions"))
    return [Arrival(i, at, next(order), next(names)) for i, at in enumerate(offsets)]


def digest(run: Run, tier: str) -> str:
    """sha256 of what a tier sends and in which order. Raises UnknownName, InvalidDocument."""
    plan, version = _plan(run, tier), run.plan.gate.golden_set
    body = work.body(run, tier, [], golden.material(version).tools, output_tokens=plan.output_tokens)
    body.pop("cache_salt", None)
    played = trajectory.digest(version) if plan.replay else None
    asked = plan.model_dump(mode="json")
    told = [golden.digest(version), played, body, {name: asked[name] for name in SHAPE}]
    total = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    for line in _lines(run, tier, plan):
        total.update(f"{line}\n".encode())
    return total.hexdigest()


def _lines(run: Run, tier: str, plan: Tier) -> Iterator[str]:
    drawn = cases(run, tier)
    for level, offered in enumerate(plan.levels, start=1):
        for number, offset_ns, case, session in of_level(run, tier, drawn, level=level):
            yield f"{level} arrival {number} {offset_ns} {case.id} {session}"
        for user in range(offered.users or 0):
            order, names = of_user(run, tier, drawn, level=level, user=user)
            for case, session in zip(islice(order, TURNS), names, strict=False):
                yield f"{level} user {user} {case.id} {session}"


def _plan(run: Run, tier: str) -> Tier:
    return getattr(run.plan.tiers, tier)  # type: ignore[no-any-return]
