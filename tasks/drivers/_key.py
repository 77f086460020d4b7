"""The engine's key: `engine.key` in the run folder, for its owner alone, removed at release."""

import os
from pathlib import Path

NAME = "engine.key"


def write(run_dir: Path, text: str) -> None:
    """Readable by its owner alone from its first moment; replaces an older one."""
    path = run_dir / NAME
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def read(run_dir: Path) -> str | None:
    """The key, or None for a server without one."""
    return (run_dir / NAME).read_text(encoding="utf-8").strip() or None
