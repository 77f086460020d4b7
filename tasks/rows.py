"""The rows of a tier, wherever they are: `<tier>/<kind>.parquet` if the tier ended, else the spools that a kill left.

One process of the client spools to `<kind>.jsonl`, each of several to `<kind>-<process>.jsonl`.
"""

from pathlib import Path
from typing import Any, Literal

from tasks import artifact

Kind = Literal["requests", "tasks", "engine"]
Rows = list[dict[str, Any]]


def read(run_dir: Path, tier: str, kind: Kind) -> Rows:
    """Rows of one kind; none if neither file exists. Raises BrokenArtifact for a file that cannot be read."""
    parquet = run_dir / tier / f"{kind}.parquet"
    if parquet.exists():
        return _parquet(parquet)
    return [row for spool in spools(run_dir / tier, kind) for row in artifact.read_rows(spool)]


def spools(folder: Path, kind: Kind) -> list[Path]:
    """The spools of one kind that a tier's folder holds, in the order of the processes."""
    shares = sorted(folder.glob(f"{kind}-*.jsonl"), key=lambda path: (len(path.name), path.name))
    return [path for path in [folder / f"{kind}.jsonl", *shares] if path.exists()]


def _parquet(path: Path) -> Rows:
    from pyarrow import ArrowException, parquet

    try:
        return parquet.read_table(path).to_pylist()  # type: ignore[no-any-return]
    except (ArrowException, OSError) as error:
        raise artifact.BrokenArtifact(f"{path}: cannot be read: {error}") from error
