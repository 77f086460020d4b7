"""`armwise stage`: the DAG's own function, on a folder or a run id; wrong words are answered with right ones."""

import lifecycle
import pytest

from tasks import lease
from tasks.artifact import BrokenArtifact
from tasks.catalog import UnknownName
from tasks.commands.stage import stage
from tasks.lease import LeaseLost
from tasks.stage import StageFailed


@pytest.mark.parametrize("named_by", [str, lambda run_dir: run_dir.parent.name])
def test_a_stage_by_folder_or_by_run_id(sandbox, capsys, named_by):
    run_dir = lifecycle.claimed(sandbox, grace_s=30)
    stage("release", named_by(run_dir))
    assert lifecycle.last_line(capsys, "/") == str(run_dir / "release.json")[1:]
    assert lease.lost(run_dir) is not None


@pytest.mark.parametrize("name", ["no-such", "claim", "drive", "drive_all"])
def test_an_unknown_stage(sandbox, name):
    run_dir = lifecycle.claimed(sandbox, grace_s=30)
    with pytest.raises(UnknownName, match=rf"no stage '{name}'; known: deploy, .*drive_agent, release"):
        stage(name, str(run_dir))


def test_an_unknown_run(sandbox):
    run_dir = lifecycle.claimed(sandbox, grace_s=30)
    with pytest.raises(BrokenArtifact, match=rf"no such run folder or run id; latest: {run_dir.parent.name}"):
        stage("release", "no-such")


@pytest.mark.parametrize("name", ["verify", "gate", "drive_gateway", "drive_agent"])
def test_a_stage_without_a_deployment_or_without_a_lease(sandbox, name):
    run_dir = lifecycle.claimed(sandbox, grace_s=30)
    with pytest.raises(StageFailed, match="clear from deploy"):
        stage(name, str(run_dir))
    stage("release", str(run_dir))
    with pytest.raises(LeaseLost, match=r"no live lease of attempt 1: it ended at .*: released: .*clear from deploy"):
        stage(name, str(run_dir))
