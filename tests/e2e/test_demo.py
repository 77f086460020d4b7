"""`armwise demo` on real vLLM through real Airflow: what the README promises, asked of the database afterwards."""

import csv
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from conftest import CHECKOUT, reachable_folder

ARMS = {"cpu-baseline", "cpu-no-prefix-caching"}
WITHIN_S = 15 * 60
ARMWISE = Path(sys.executable).with_name("armwise")

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(WITHIN_S + 120)]


@dataclass(frozen=True)
class Demo:
    environment: dict[str, str]
    exit_code: int
    said: str
    left: list[str]  # processes that still belong to it after its end

    def ask(self, statement: str) -> list[dict[str, str]]:
        done = subprocess.run(
            [ARMWISE, "sql", statement], env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return list(csv.DictReader(io.StringIO(done.stdout)))


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    if not (CHECKOUT / ".venv-engine-cpu" / ".ready").exists():
        pytest.skip("no engine: .venv-engine-cpu is missing; make engine-cpu")
    with reachable_folder() as folder:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ARMWISE_")}
        environment |= {"ARMWISE_HOME": str(folder / "home")}
        done = subprocess.run(
            [ARMWISE, "demo"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WITHIN_S,
        )
        print(done.stdout)
        yield Demo(environment, done.returncode, done.stdout, processes_under(folder))


def processes_under(folder: Path) -> list[str]:
    """Command lines of processes that were told of this home folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in " ".join(process.environ().values()) and process.pid != os.getpid():
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def test_it_ends_well_and_leaves_nothing_running(demo: Demo) -> None:
    assert demo.exit_code == 0, demo.said[-3000:]
    assert demo.left == []


def test_two_runs_are_stored_valid_and_gated(demo: Demo) -> None:
    runs = demo.ask("select arm, engine, state, is_valid, invalid_reasons from report.run")
    assert {run["arm"] for run in runs} == ARMS and len(runs) == 2
    assert all(run["is_valid"] == "true" and run["engine"] == "vllm" for run in runs), runs
    golden = demo.ask("select arm, outcome, count(*) as n from report.golden group by arm, outcome")
    assert sum(int(row["n"]) for row in golden) == 2 * 41
    assert {row["outcome"] for row in golden} <= {"pass", "fail"}, "every case evaluated"


def test_both_tiers_have_rows_and_no_failure(demo: Demo) -> None:
    rows = demo.ask("select run_id, tier, count(*) as n, count(failure) as failed from request group by run_id, tier")
    assert {row["tier"] for row in rows} == {"gateway", "agent"} and len(rows) == 4
    assert all(int(row["n"]) >= 10 and row["failed"] == "0" for row in rows), rows


def test_cost_stands_in_both_lenses(demo: Demo) -> None:
    costs = demo.ask("select arm, lens, usd_per_task, is_nominal, reason from report.cost_per_task")
    assert {(row["arm"], row["lens"]) for row in costs} == {
        (arm, lens) for arm in ARMS for lens in ("all_in", "sustained")
    }
    assert all(row["is_nominal"] == "true" for row in costs), costs
    for row in costs:  # on a slow machine an arm may break an SLO, and then there is no sustained cost to show
        has_none = row["lens"] == "sustained" and row["reason"].startswith("no level of the agent tier keeps")
        assert row["usd_per_task"] == "" if has_none else float(row["usd_per_task"]) > 0, row


def test_the_effect_of_prefix_caching_is_visible_with_its_bounds(demo: Demo) -> None:
    asked = "metric = 'ttft_ms' and q = 0.5 and steps = 'later' order by arm"
    with_cache, without = demo.ask(f"select arm, estimate, lower, upper from report.latency where {asked}")
    for row in (with_cache, without):
        assert float(row["lower"]) <= float(row["estimate"]) <= float(row["upper"])
    assert float(with_cache["estimate"]) < float(without["estimate"]), "without it, each step computes its whole prompt"
    assert "TTFT p50 of agent steps 2+" in demo.said
    assert "INCONCLUSIVE" in demo.said, "one deployment each is no verdict"


def test_null_calibration_stands_in_the_report(demo: Demo) -> None:
    asked = "select run_id, tier, path, is_enough, reason, calls_after_burst from report.client where path <> 'load'"
    rows = demo.ask(asked)
    assert len({(row["run_id"], row["tier"], row["path"]) for row in rows}) == len(rows) == 2 * 2 * 2
    assert all(row["is_enough"] == "true" and int(row["calls_after_burst"]) >= 10 for row in rows), rows
    loaded = demo.ask("select run_id, tier, loop_lag_ms_p99, cpu_share from report.client where path = 'load'")
    assert len({(row["run_id"], row["tier"]) for row in loaded}) == 4
    assert all(row["loop_lag_ms_p99"] and float(row["cpu_share"]) > 0 for row in loaded), loaded
    shares = demo.ask("select ttft_ms, client_ms, gateway_ms, ours_share from report.ttft_share where q = 0.5")
    assert len(shares) == 4
    assert all(0 < float(row["ours_share"]) < 1 for row in shares), shares
    assert "What the client itself adds" in demo.said


def test_the_battery_stands_in_the_report_and_nothing_is_broken(demo: Demo) -> None:
    rows = demo.ask("select run_id, rule, outcome, says, observed from report.honesty")
    assert len({row["run_id"] for row in rows}) == 2
    assert {int(row["rule"]) for row in rows} >= {1, 2, 3, 4, 5, 6, 7, 8, 9, 12}
    assert [row for row in rows if row["outcome"] == "BROKEN"] == []
