"""The gate against the stand-in engine: what passes, what fails, and what did not look."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tasks import arm, artifact
from tasks.agent import golden
from tasks.arm import Arm
from tasks.document import parse
from tasks.plan import Plan
from tasks.price import Price
from tasks.run import Run, document, read
from tasks.stages import gate as stage
from tasks.target import Target

pytestmark = pytest.mark.services  # a gateway

STAND_IN = Path(__file__).resolve().parents[2] / "stand_in" / "engine.py"
TIER = {"levels": [{"users": 1, "duration_s": 1}]}
PLAN = {"purpose": "tests of the gate", "seed": 7, "tiers": {"gateway": TIER, "agent": TIER}}
TARGET = {"driver": "process", "says": "a machine of the tests", "slots": ["s0"], "command": ["engine"]}
PRICE = {"says": "nominal", "usd_per_hour": 1.0, "is_nominal": True, "source": "a round number"}
NOWHERE = "http://127.0.0.1:9"  # port 9 discards; nothing listens


@pytest.fixture(autouse=True)
def no_database(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "postgres" not in request.fixturenames:
        monkeypatch.setenv("ARMWISE_DB_URL", "none")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts stand-ins; `engine("fault")` returns the URL of one."""
    started: list[subprocess.Popen[bytes]] = []

    def start(fault: str = "", **environment: str) -> str:
        log = tmp_path / f"engine{len(started)}.log"
        command = [sys.executable, str(STAND_IN), "--model", "m", "--port", "0"]
        with log.open("wb") as output:
            env = os.environ | {"STAND_IN_FAULT": fault, "STAND_IN_TPOT_MS": "0"} | environment
            started.append(subprocess.Popen(command, stdout=output, stderr=output, env=env))
        deadline = time.monotonic() + 20
        while "server on http" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        url = log.read_text().rpartition("server on ")[2].strip()
        assert urlopen(f"{url}/health", timeout=5).status == 200
        return url

    yield start
    for process in started:
        process.kill()
        process.wait()


def make(folder: Path, url: str = NOWHERE, arm_name: str = "cpu-baseline", **limits: Any) -> Path:
    """A run folder as deploy and verify leave it."""
    content = PLAN | {"gate": {"at_once": 8, "timeout_s": 60} | limits}
    run = Run(
        folder=folder / "r1" / "1",
        run_id="r1",
        attempt=1,
        arm_name=arm_name,
        arm=arm.load(arm_name),
        target_name="tests",
        target=parse(TARGET, Target, source="target"),
        plan_name="p",
        plan=parse(content, Plan, source="plan"),
        price=parse(PRICE, Price, source="price"),
        repeat=1,
        slot="s0",
        seed=7,
        claimed_at=1.0,
    )
    artifact.write(run.folder / "run.json", document(run))
    artifact.write(run.folder / "deployment.json", {"gateway_url": url, "model": "m"})
    return run.folder


def gated(run_dir: Path) -> dict[str, Any]:
    return artifact.read(stage.gate(run_dir))


def test_every_case_right_is_a_pass(tmp_path: Path, engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = make(tmp_path, engine())
    found = gated(run_dir)
    assert (found["verdict"], found["cases"], found["evaluated"], found["counted"], found["passed"]) == (
        "PASS",
        41,
        41,
        40,
        40,
    )
    assert found["pass_rate"] == 1.0 and found["known_limits"] == {"g41": "pass"}
    assert "no database with results of the control cpu-baseline, so the pass rate alone decides" in found["reason"]
    assert found["golden_sha256"] == golden.digest("v1")
    rows = artifact.read_rows(run_dir / "golden.jsonl")
    assert [row["case_id"] for row in rows] == [case.id for case in golden.load("v1")]
    assert all(row["steps"] >= 1 and row["task_ms"] > 0 and row["outcome"] == "pass" for row in rows)
    said = capsys.readouterr().out.splitlines()
    assert said[-2].startswith("gate: 41/41 cases, 41 pass, 0 fail,") and said[-1].startswith("gate: PASS: 40 of 40")


def test_wrong_answers_are_a_fail_that_raises_nothing(tmp_path: Path, engine: Any) -> None:
    run_dir = make(tmp_path, engine("wrong_answers"))
    found = gated(run_dir)
    assert (found["verdict"], found["evaluated"], found["passed"]) == ("FAIL", 41, 0)
    assert "0 of 40 cases passed, at least 95.0% must: g01 (no call web_search" in found["reason"]
    reasons = {row["case_id"]: row["reason"] for row in artifact.read_rows(run_dir / "golden.jsonl")}
    assert reasons["g38"].startswith("the answer lacks")


def test_rubbish_json_is_a_fail(tmp_path: Path, engine: Any) -> None:
    run_dir = make(tmp_path, engine("rubbish_json"))
    found = gated(run_dir)
    assert (found["verdict"], found["evaluated"], found["passed"]) == ("FAIL", 41, 3)  # the three without a tool
    rows = artifact.read_rows(run_dir / "golden.jsonl")
    assert "not JSON" in next(row["reason"] for row in rows if row["case_id"] == "g01")


@pytest.mark.parametrize("fault", ["http_503:1", "truncated"])
def test_a_case_that_was_not_evaluated_is_invalid(tmp_path: Path, engine: Any, fault: str) -> None:
    found = gated(make(tmp_path, engine(fault)))
    assert found["verdict"] == "INVALID" and found["evaluated"] < 41
    assert "cases were not evaluated: " in found["reason"]


def test_one_error_among_forty_passes_is_invalid(tmp_path: Path, engine: Any) -> None:
    found = gated(make(tmp_path, engine("die_after:100"), at_once=1))
    assert found["verdict"] == "INVALID" and 30 < found["evaluated"] < 41 and found["passed"] == found["evaluated"]


def test_no_gateway_is_invalid_and_quick(tmp_path: Path) -> None:
    began = time.monotonic()
    found = gated(make(tmp_path))
    assert (found["verdict"], found["evaluated"], found["passed"]) == ("INVALID", 0, 0)
    assert "connect" in found["reason"] and time.monotonic() - began < 20


def test_the_gate_keeps_its_time(tmp_path: Path, engine: Any) -> None:
    run_dir = make(tmp_path, engine("hang"), timeout_s=2, at_once=2)
    began = time.monotonic()
    found = gated(run_dir)
    assert time.monotonic() - began < 8
    assert (found["verdict"], found["evaluated"]) == ("INVALID", 0)
    reasons = {row["reason"] for row in artifact.read_rows(run_dir / "golden.jsonl")}
    assert reasons & {"cut off when the gate's 2 s were over", "step 1: timeout: no end within the call's deadline"}
    assert "not begun within the gate's 2 s" in reasons


def test_a_plan_without_a_gate_is_none_never_pass(tmp_path: Path) -> None:
    found = gated(make(tmp_path, none_because="the test wants no gate"))
    assert (found["verdict"], found["cases"], found["evaluated"], found["pass_rate"]) == ("NONE", 0, 0, None)
    assert "the test wants no gate" in found["reason"]
    assert not (tmp_path / "r1/1/golden.jsonl").exists()


def test_a_gate_that_was_written_is_not_played_again(tmp_path: Path) -> None:
    run_dir = make(tmp_path)
    artifact.write(run_dir / "gate.json", {"verdict": "FAIL"})
    assert gated(run_dir) == {"verdict": "FAIL"}


def test_a_run_without_deployment_says_so(tmp_path: Path) -> None:
    run_dir = make(tmp_path)
    (run_dir / "deployment.json").unlink()
    with pytest.raises(artifact.BrokenArtifact, match=r"deployment.json: is missing"):
        stage.gate(run_dir)
    assert not (run_dir / "gate.json").exists()


def test_a_stop_ends_the_calls(tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while calls hang: the stage ends within seconds and leaves no gate.json."""

    def stopped(*_: Any, **__: Any) -> None:
        time.sleep(0.5)
        raise KeyboardInterrupt

    monkeypatch.setattr(stage, "_follow", stopped)
    run_dir = make(tmp_path, engine("hang"))
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        stage.gate(run_dir)
    assert time.monotonic() - began < 8 and not (run_dir / "gate.json").exists()


# ---- verdicts from rows


def row(case_id: str, outcome: str, *, is_known_limit: bool = False) -> dict[str, Any]:
    return {"case_id": case_id, "outcome": outcome, "is_known_limit": is_known_limit, "reason": "because"}


def rows(passed: int, failed: int) -> list[dict[str, Any]]:
    return [row(f"c{n:02}", "pass" if n < passed else "fail") for n in range(passed + failed)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return read(make(tmp_path, min_pass_rate=0.9))


def verdict(run: Run, found: list[dict[str, Any]], history: Any = ()) -> dict[str, Any]:
    return stage.document(run, found, list(history), "")


def test_nothing_evaluated_is_invalid(run: Run) -> None:
    for found in ([], [row("g41", "pass", is_known_limit=True)]):
        content = verdict(run, found)
        assert (content["verdict"], content["pass_rate"]) == ("INVALID", None)
        assert content["reason"] == "nothing was evaluated: the golden set has no case that counts"


@pytest.mark.parametrize(
    ("passed", "failed", "expected"), [(9, 1, "PASS"), (89, 11, "FAIL"), (10, 0, "PASS"), (27, 3, "PASS")]
)
def test_the_pass_rate_decides(run: Run, passed: int, failed: int, expected: str) -> None:
    assert verdict(run, rows(passed, failed))["verdict"] == expected


def test_a_known_limit_counts_neither_way(run: Run) -> None:
    for outcome in ("fail", "pass"):
        found = [*rows(9, 1), *(row(f"k{n}", outcome, is_known_limit=True) for n in range(20))]
        content = verdict(run, found)
        assert (content["verdict"], content["passed"], content["counted"], content["pass_rate"]) == ("PASS", 9, 10, 0.9)
        assert set(content["known_limits"].values()) == {outcome}


def test_an_error_of_a_known_limit_is_still_not_evaluated(run: Run) -> None:
    assert verdict(run, [*rows(10, 0), row("k", "error", is_known_limit=True)])["verdict"] == "INVALID"


ALL = {f"c{n:02}": True for n in range(100)}


def test_one_stored_control_counts_by_the_sign_test(run: Run) -> None:
    four, five = (verdict(run, rows(100 - n, n), [("r0", ALL)]) for n in (4, 5))
    assert (four["verdict"], five["verdict"]) == ("PASS", "FAIL")
    assert four["worse_cases"] == ["c96", "c97", "c98", "c99"] and four["compared_with"] == "r0"
    assert "4 worse than the control's r0: c96, c97, c98, c99 (its only stored run" in four["reason"]


def test_a_flip_rate_of_the_control_sets_the_bound(run: Run) -> None:
    steady = [(f"r{n}", ALL) for n in range(12)]
    shaky = [(f"r{n}", ALL if n % 2 == 0 else ALL | {"c01": False, "c02": False}) for n in range(11)]
    one = rows(99, 1)
    assert verdict(run, one, steady)["verdict"] == "FAIL"
    assert verdict(run, one, shaky)["verdict"] == "PASS"
    assert "its own 12 runs flipped 0 of 1100: up to 0 is chance" in verdict(run, one, steady)["reason"]


def test_a_case_that_the_control_fails_too_is_not_worse(run: Run) -> None:
    content = verdict(run, rows(99, 1), [(f"r{n}", ALL | {"c99": False}) for n in range(12)])
    assert (content["verdict"], content["worse_cases"]) == ("PASS", [])


# ---- one row


def played(**parts: Any) -> Any:
    from tasks.agent.graph import Played

    return Played(**({"steps": 1} | parts))


def test_an_empty_answer_is_wrong_and_evaluated(run: Run) -> None:
    case = golden.load("v1")[0]
    end = {"failure": "request", "failure_detail": "step 1: empty"}
    assert stage.row_of(run, case, played=played(request_failure="empty", **end))["outcome"] == "fail"
    assert stage.row_of(run, case, played=played(request_failure="http_5xx", **end))["outcome"] == "error"


def test_what_no_database_stores_is_replaced(run: Run) -> None:
    case = golden.load("v1")[0]
    content = stage.row_of(run, case, played=played(answer="a\x00b\ud800" + "c" * 5000))
    assert content["answer"].startswith("a\ufffdb?ccc") and len(content["answer"]) == 2000
    json.dumps(content).encode("utf-8")


# ---- the control's stored results, in a real Postgres


def store(run_id: str, claimed_at: str, failing: list[str], **columns: Any) -> None:
    """One row of `run` and its golden outcomes."""
    import sqlalchemy

    from tasks import database

    known: dict[str, Any] = {
        "run_id": run_id,
        "arm": "cpu-baseline",
        "arm_digest": arm.load("cpu-baseline").digest(),
        "golden_sha256": golden.digest("v1"),
        "gate_verdict": "PASS",
        "claimed_at": claimed_at,
        "is_valid": True,
    } | columns
    with database.engine().begin() as connection:
        statement = (Path(__file__).parent / "stored_run.sql").read_text()
        connection.execute(sqlalchemy.text(statement), known)
        for case in golden.load("v1"):
            outcome = "fail" if case.id in failing else "pass"
            connection.execute(
                sqlalchemy.text("insert into golden (run_id, attempt, case_id, outcome) values (:r, 1, :c, :o)"),
                {"r": run_id, "c": case.id, "o": outcome},
            )


def test_the_control_s_history_is_read_from_the_database(tmp_path: Path, postgres: str) -> None:
    store("old", "2026-11-01", ["g02"])
    store("new", "2026-11-03", ["g03", "g41"])
    store("broken", "2026-11-04", ["g05"], is_valid=False)
    store("failed", "2026-11-04", ["g06"], gate_verdict="FAIL")
    store("other-arm", "2026-11-05", ["g07"], arm="cpu-ngram")
    store("other-set", "2026-11-05", ["g08"], golden_sha256="0" * 64)
    store("other-settings", "2026-11-05", ["g09"], arm_digest="0" * 64)
    store("r1", "2026-11-06", ["g10"])
    for name in ("cpu-no-prefix-caching", "cpu-baseline"):  # its control, and the control itself
        history, said = stage.control_history(read(make(tmp_path / name, arm_name=name)))
        assert [run_id for run_id, _ in history] == ["old", "new"] and said == ""
        assert [sorted(case for case, passed in outcomes.items() if not passed) for _, outcomes in history] == [
            ["g02"],
            ["g03", "g41"],
        ]


def test_an_empty_database_is_said(tmp_path: Path, postgres: str) -> None:
    history, said = stage.control_history(read(make(tmp_path)))
    assert history == [] and said.startswith("the control cpu-baseline has no stored result on this golden set")


def test_a_database_that_is_away_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARMWISE_DB_URL", "postgresql://nobody@127.0.0.1:9/armwise")
    history, said = stage.control_history(read(make(tmp_path)))
    assert history == [] and "results of the control cpu-baseline cannot be read" in said


def test_the_arm_of_the_tests_is_the_demo_model() -> None:
    assert golden.model_of(arm.load("cpu-baseline")) == "deploy/models/demo/model"
    content = arm.load("cpu-baseline").model_dump() | {"model": {"repo": "a/b", "revision": "c"}}
    assert golden.model_of(parse(content, Arm, source="arm")) == "a/b"
