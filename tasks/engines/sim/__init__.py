"""sim: a server that knows the truth. An OpenAI-compatible server around a model of vLLM's scheduler, with a record of
what it really sent and faults that can be planted. For dry runs of a plan and for tests: no number of it is measured.

    flags.py      command line -> limits, machine          roofline.py   how long a step takes
    scheduler.py  which tokens in which step (blocks.py)   play.py       a whole queue without waiting
    engine.py     the scheduler in real time (alarm.py)    stream.py     events of one answer (deltas.py, wire.py)
    answers.py    what it says                             faults.py     what can be planted (starve.py)
    server.py, chat.py, metrics.py                         record.py     what it really sent

To the project it is an engine like any other. It takes vLLM's flags and shows vLLM's endpoints, so it is started and
read back by the code that does it for vLLM. But a flag that it takes and models nothing by proves nothing: such flags
are unverified.
"""

from pathlib import Path
from typing import Any

from tasks.arm import Arm
from tasks.engines import vllm

METRICS = vllm.METRICS
KEY_ENV = vllm.KEY_ENV
DEV_ENV = vllm.DEV_ENV
TAKES = vllm.TAKES
OWNED = vllm.OWNED
flag_names = vllm.flag_names
argv = vllm.argv
ready = vllm.ready
UNMODELLED = "the sim takes this flag and models nothing by it"


def environment(arm: Arm) -> dict[str, str]:
    """Environment of the server."""
    return dict(arm.env)


def effective(url: str, key: str | None, log: Path | str | None) -> dict[str, Any]:
    """The configuration in effect, as vllm.effective gives it. Raises OSError, ValueError if the server is silent."""
    found = vllm.effective(url, key, log)
    versions = {"sim" if name == "vllm" else name: value for name, value in found["versions"].items()}
    return found | {"versions": versions}


def compare(arm: Arm, effective: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(differences, unverified), as vllm.compare, but for flags that nothing is modelled by: they are unverified."""
    from tasks.engines.sim.flags import MODELLED

    differences, unverified = vllm.compare(arm, effective)
    idle = [flag for flag in arm.flags if flag not in MODELLED]
    rows = [{"flag": f"flags.{flag}", "requested": arm.flags[flag], "why": UNMODELLED} for flag in idle]
    told = {row["flag"] for row in rows}
    return differences, [row for row in unverified if row["flag"] not in told] + rows
