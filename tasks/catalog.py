"""A folder is a registry: a name in YAML is the stem of a file (or the name of a folder), and nothing else lists it."""

from importlib import import_module
from pathlib import Path
from types import ModuleType


class UnknownName(ValueError):
    """A name that no file in its registry folder has; the message holds the known ones."""


def names(folder: Path, suffix: str) -> list[str]:
    """Sorted stems of the files `*suffix` in folder. Files that start with an underscore are not members."""
    return sorted(p.name.removesuffix(suffix) for p in folder.glob(f"*{suffix}") if not p.name.startswith("_"))


def path_of(folder: Path, name: str, suffix: str) -> Path:
    """Path of one member. Raises UnknownName."""
    known = names(folder, suffix)
    if name not in known:
        raise UnknownName(f"{folder}: no '{name}'; known: {', '.join(known) or 'none'}")
    return folder / f"{name}{suffix}"


def module_of(package: ModuleType, name: str) -> ModuleType:
    """Import one member of a package folder: a module `name.py` or a package `name/`. Raises UnknownName."""
    known = module_names(package)
    if name not in known:
        raise UnknownName(f"{package.__name__}: no '{name}'; known: {', '.join(known) or 'none'}")
    return import_module(f"{package.__name__}.{name}")


def module_names(package: ModuleType) -> list[str]:
    """Sorted names of the modules and packages in a package folder."""
    folder = Path(package.__path__[0])
    packages = [p.parent.name for p in folder.glob("*/__init__.py")]
    return sorted({*names(folder, ".py"), *(p for p in packages if not p.startswith("_"))})
