from pathlib import Path

import pytest

import tasks.stages
from tasks import catalog


def test_names_are_the_stems_without_private_ones(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yaml", "_draft.yaml", "notes.md"):
        (tmp_path / name).touch()
    assert catalog.names(tmp_path, ".yaml") == ["a", "b"]


@pytest.mark.parametrize("name", ["c", "", "../a", "_draft", "a.yaml"])
def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path, name: str) -> None:
    for known in ("a.yaml", "b.yaml", "_draft.yaml"):
        (tmp_path / known).touch()
    with pytest.raises(catalog.UnknownName, match="known: a, b"):
        catalog.path_of(tmp_path, name, ".yaml")


def test_an_unknown_module_is_answered_with_the_known_ones() -> None:
    with pytest.raises(catalog.UnknownName, match=r"known: .*claim.*deploy"):
        catalog.module_of(tasks.stages, "nonsense")
