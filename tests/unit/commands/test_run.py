"""The order of `armwise run`, what it skips, and its exit code. The stages here are scripts, not the real ones."""

import signal

import lifecycle
import pytest
import typer

from tasks import artifact, database, lease, stage
from tasks.commands import run as command


@pytest.fixture
def stages(sandbox, monkeypatch):
    """Stages that note their names. `script[name]` is what one does instead; release is always the real one."""
    script, called = {}, []
    real = stage.function("release")

    def function(name):
        def work(run_dir):
            called.append(name)
            if name == "deploy":
                artifact.write(run_dir / "deployment.json", {"engine_pid": None})
            if name == "gate":
                artifact.write(run_dir / "gate.json", {"verdict": "PASS", "reason": "scripted"})
            if name in script:
                return script[name](run_dir)
            return real(run_dir) if name == "release" else run_dir

        return work

    monkeypatch.setattr(stage, "function", function)
    monkeypatch.setattr(database, "available", lambda: True)
    monkeypatch.setattr("tasks.slot_lease._in_database", lambda _work: None)
    return script, called


def fails(words):
    def work(_run_dir):
        raise stage.StageFailed(words)

    return work


def go(plan="smoke", **options):
    options = {"target": "stand-in", "repeat": 1, "wait": 0} | options
    with pytest.raises(typer.Exit) as ended:
        command.run("cpu-baseline", plan=plan, **options)
    return ended.value.exit_code


def test_all_stages_in_order(stages, capsys):
    assert go() == 0
    assert stages[1] == list(stage.ORDER[1:])
    said = capsys.readouterr().out.splitlines()
    assert said[-2].startswith("run folder: /") and said[-1].startswith("next: armwise report cpu-baseline-")


@pytest.mark.parametrize("broken", stage.ORDER[1:6])
def test_a_failed_stage_ends_the_work_and_everything_is_still_stored(stages, capsys, broken):
    stages[0][broken] = fails("planted: it is broken")
    assert go() == 1
    upto = stage.ORDER[1 : stage.ORDER.index(broken) + 1]
    assert stages[1] == [*upto, "release", "validate", "load", "judge"]
    said = capsys.readouterr().out
    assert f"{broken}: FAILED after" in said and f"this run FAILED: {broken}: planted: it is broken" in said


@pytest.mark.parametrize("broken", ["validate", "load", "judge"])
def test_what_fails_in_storing_does_not_keep_the_rest_from_it(stages, broken):
    stages[0][broken] = fails("planted")
    assert go() == 1
    assert stages[1] == list(stage.ORDER[1:])


def test_a_gate_that_fails_skips_the_load_and_is_no_failure_of_the_pipeline(stages, capsys):
    stages[0]["gate"] = lambda run_dir: artifact.write(
        run_dir / "gate.json", {"verdict": "FAIL", "reason": "3 of 40 cases"}
    )
    assert go() == 0
    assert stages[1] == ["deploy", "verify", "gate", "release", "validate", "load", "judge"]
    assert "drive_agent: skipped: the gate said FAIL: 3 of 40 cases" in capsys.readouterr().out


def test_no_database_is_one_line_and_no_failure(stages, monkeypatch, capsys):
    monkeypatch.setattr(database, "available", lambda: False)
    assert go() == 0
    assert "load" not in stages[1]
    assert "load: skipped, no database here; where there is one: armwise load /" in capsys.readouterr().out


def test_a_gpu_host_without_the_orchestrator_leaves_a_folder_to_load_elsewhere(stages, monkeypatch, capsys):
    monkeypatch.setattr(database, "available", lambda: False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert go() == 0
    assert stages[1][-1] == "release"
    said = capsys.readouterr().out
    for name in ("validate", "load", "judge"):
        assert f"{name}: skipped, no " in said


@pytest.mark.parametrize("name", ["deploy", "verify", "gate", "drive_gateway", "drive_agent"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_in_any_stage_of_the_work(stages, name, number, code, capsys):
    stages[0][name] = lambda _run_dir: signal.raise_signal(number)
    assert go() == code
    assert stages[1][stages[1].index(name) :] == [name, "release", "validate", "load", "judge"]
    run_dir = lifecycle.last_line(capsys, "run folder: ")
    assert artifact.read(lifecycle.Path(run_dir) / "release.json")["was_held"]


@pytest.mark.parametrize("name", ["release", "validate", "load", "judge"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_storing_is_obeyed_afterwards(stages, name, number, code):
    once = iter([number])

    def work(run_dir):
        for number in once:
            signal.raise_signal(number)
        return run_dir

    stages[0][name] = work
    assert go() == code
    assert [one for one in dict.fromkeys(stages[1]) if one in stage.AFTER_RELEASE] == list(stage.AFTER_RELEASE)


def test_a_second_signal_skips_storing_but_never_the_release(stages, capsys):
    stages[0]["deploy"] = lambda _run_dir: signal.raise_signal(signal.SIGINT)
    twice = iter([signal.SIGTERM])
    real = stage.function("release")

    def work(run_dir):
        for number in twice:
            signal.raise_signal(number)
        del stages[0]["release"]
        return real(run_dir)

    stages[0]["release"] = work
    assert go() == 130
    assert "validate" not in stages[1] and "judge" not in stages[1]
    assert lifecycle.Path(lifecycle.last_line(capsys, "run folder: "), "release.json").exists()


def test_a_busy_slot_is_said_with_what_to_do(stages, sandbox):
    lifecycle.claimed(sandbox, grace_s=30)
    with pytest.raises(lease.SlotBusy, match="To wait for it: --wait SECONDS"):
        command.run("cpu-baseline", target="stand-in", plan="smoke", repeat=1, wait=0)


def test_waiting_takes_the_slot_when_it_is_free(stages, sandbox, capsys, monkeypatch):
    monkeypatch.setattr(command, "ASK_EVERY_S", 0.1)
    first = lifecycle.claimed(sandbox, grace_s=0.5)
    assert go(wait=20) == 0
    assert "waiting: slot stand-in.s0 is held by" in capsys.readouterr().out
    assert lease.lost(first) is not None


def test_waiting_ends(stages, sandbox, monkeypatch):
    monkeypatch.setattr(command, "ASK_EVERY_S", 0.1)
    lifecycle.claimed(sandbox, grace_s=30)
    with pytest.raises(lease.SlotBusy, match=r"place 1 in the queue$"):
        command.run("cpu-baseline", target="stand-in", plan="smoke", repeat=1, wait=0.5)


def test_ctrl_c_while_waiting(stages, sandbox, monkeypatch):
    lifecycle.claimed(sandbox, grace_s=30)
    monkeypatch.setattr(command.time, "sleep", lambda _s: signal.raise_signal(signal.SIGINT))
    assert go(wait=20) == 130
    assert stages[1] == []
