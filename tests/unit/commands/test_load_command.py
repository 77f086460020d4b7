import shutil
from pathlib import Path

import measured_run
import pytest
import sqlalchemy

from tasks import database
from tasks.artifact import BrokenArtifact
from tasks.commands.load import load

pytestmark = pytest.mark.services  # a Postgres


def stored() -> list[tuple[object, ...]]:
    statement = "select run_id, is_valid, (select count(*) from percentile), (select count(*) from verdict) from run"
    with database.engine().connect() as connection:
        return [tuple(row) for row in connection.execute(sqlalchemy.text(statement))]


def test_a_folder_from_elsewhere_is_validated_stored_and_judged(
    postgres: str, armwise_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = measured_run.make(tmp_path / "elsewhere")
    copied = tmp_path / "copied" / "1"
    shutil.copytree(made, copied)
    load(str(copied))
    ((run_id, is_valid, percentiles, verdicts),) = stored()
    assert (run_id, is_valid, verdicts) == ("r1", True, 3)
    assert isinstance(percentiles, int)
    assert percentiles > 0
    assert capsys.readouterr().out.splitlines()[-1] == f"stored: {copied}"
    load(str(copied))
    assert stored() == [(run_id, is_valid, percentiles, verdicts)]


def test_a_folder_that_is_no_run_is_named(armwise_home: Path, tmp_path: Path) -> None:
    with pytest.raises(BrokenArtifact, match="no such run folder or run id"):
        load(str(tmp_path / "nothing"))
