"""Every folder in deploy/targets keeps the contract of a target."""

from pathlib import Path

import pytest
import yaml

from tasks import catalog, drivers, target
from tasks.document import InvalidDocument

NAMES = target.names()


def test_what_the_project_promises_is_there() -> None:
    assert {"local-cpu", "local-gpu", "endpoint"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_loads_and_its_driver_exists(name: str) -> None:
    found = target.load(name)
    assert found.driver in catalog.module_names(drivers)
    assert len(set(found.slots)) == len(found.slots)
    assert found.command or found.driver != "process"


def test_no_two_targets_share_a_name_of_a_slot() -> None:
    slots = [slot for name in NAMES for slot in target.load(name).slots]
    assert len(slots) == len(set(slots)), "a slot's name is how a person tells which machine is held"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("slots", [], "slots: List should have at least 1 item"),
        ("slots", "cpu0", "slots: Input should be a valid .*, found 'cpu0'"),
        ("needs", ["revision"], "needs.0: Input should be 'image' or 'model.revision', found 'revision'"),
        ("drivr", "process", "drivr: not a known field; known: command, driver"),
        ("says", "me", "says: String should have at least 10 characters"),
    ],
)
def test_a_bad_field_is_named(sandbox: Path, field: str, value: object, words: str) -> None:
    path = sandbox / "deploy" / "targets" / "stand-in" / "target.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {field: value}))
    with pytest.raises(InvalidDocument, match=words) as error:
        target.load("stand-in")
    assert str(error.value).startswith(f"{path}: ")
    assert len(str(error.value).splitlines()) == 1


def test_an_unknown_target_is_answered_with_the_known_ones(sandbox: Path) -> None:
    with pytest.raises(catalog.UnknownName, match="no 'local'; known: endpoint, local-cpu, local-gpu, sim, stand-in"):
        target.load("local")
