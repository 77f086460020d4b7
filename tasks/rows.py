"""The rows of a tier, wherever they are: `<tier>/<kind>.parquet` if the tier ended, else the spool that a kill left."""

from pathlib import Path
from typing import Any, Literal

from tasks import artifact

Kind = Literal["requests", "tasks", "engine"]
Rows = list[dict[str, Any]]


def read(run_dir: Path, tier: str, kind: Kind) -> Rows:
    """Rows of one kind; none if neither file exists. Raises BrokenArtifact for a file that cannot be read."""
    parquet = run_dir / tier / f"{kind}.parquet"
    return _parquet(parquet) if parquet.exists() else artifact.read_rows(parquet.with_suffix(".jsonl"))


def _parquet(path: Path) -> Rows:
    from pyarrow import ArrowException, parquet

    try:
        return parquet.read_table(path).to_pylist()  # type: ignore[no-any-return]
    except (ArrowException, OSError) as error:
        raise artifact.BrokenArtifact(f"{path}: cannot be read: {error}") from error
