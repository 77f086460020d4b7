"""Is the engine running what the arm asked for? The configuration in effect is read back and compared.

A flag that did not take effect makes every number of the run a number about another arm, so it ends the run before any
load. What nothing could be read of is `unverified`, and stays so in the rows. Settings that the engine derived itself
are stored whole and not judged.
"""

from pathlib import Path
from typing import Any

from tasks import artifact, catalog, engines
from tasks.arm import flatten
from tasks.drivers import _key
from tasks.engines._http import FAULTS
from tasks.run import Run, read
from tasks.stage import StageFailed

FORMAT = 1


def verify(run_dir: Path) -> Path:
    """Write effective.json. Raises StageFailed if a requested setting is not in effect, or the engine is silent."""
    path = run_dir / "effective.json"
    if not path.exists():
        artifact.write(path, _document(read(run_dir), artifact.read(run_dir / "deployment.json")))
    differences = artifact.read(path)["differences"]
    if differences:
        raise StageFailed("\n".join(map(_words, differences)))
    return path


def _document(run: Run, deployment: dict[str, Any]) -> dict[str, Any]:
    engine = catalog.module_of(engines, run.arm.engine)
    try:
        found = engine.effective(deployment["url"], _key.read(run.folder), deployment.get("log"))
    except FAULTS as error:
        raise StageFailed(f"{deployment['url']}: {run.arm.engine} does not show its configuration: {error}") from error
    differences, unverified = engine.compare(run.arm, found)
    asked = {part: run.arm.model_dump()[part] for part in ("model", "flags", "env")}
    return {
        "format": FORMAT,
        "source": found["source"],
        "requested": {key: value for key, value in flatten(asked).items() if value is not None},
        "companions": run.arm.companions,
        "effective": found["config"],
        "environment": found["env"],
        "arguments": found["arguments"],
        "differences": differences,
        "unverified": unverified,
        "weight_bytes": found["weight_bytes"],
        "weight_bytes_from": found["weight_bytes_from"],
        "kv_pool_tokens": found["kv_pool_tokens"],
        "versions": found["versions"],
        "process_start_time": found["process_start_time"],
    }


def _words(row: dict[str, Any]) -> str:
    return (
        f"{row['flag']}: requested {row['requested']!r}, in effect {row['effective']!r} (read from {row['where']});"
        " the run stops before any load"
    )
