"""The order of a tier's levels, over a crew that only pretends; and what several processes say as one."""

from pathlib import Path
from typing import Any

import pytest

from tasks import artifact
from tasks.plan import Level, Tier
from tasks.traffic import client, lead

SPREADS = {f"{name}_{at}": 1.0 for name in ("loop_lag_ms", "schedule_delay_ms") for at in ("p50", "p99", "max")}


def note(process: int = 0, **more: Any) -> dict[str, Any]:
    flow = {"arrived": 900, "completed": 900, "in_flight_middle": 4.0, "in_flight_last": 4.0, "seconds": 30.0}
    told = {
        "process": process,
        "pid": 100 + process,
        "fault": None,
        "started_at": 5.0,
        "t_start_ns": 10,
        "t_load_end_ns": 20,
        "t_end_ns": 30,
        "t_all_finished_one_ns": 15,
        "requests": 100,
        "unsent": 0,
        "cpu_share": 0.2,
        "cpu_wait_share": 0.1,
        "flow": flow,
    }
    return told | SPREADS | more


GROWN = {"arrived": 900, "completed": 500, "in_flight_middle": 100.0, "in_flight_last": 300.0, "seconds": 30.0}


class Pretended:
    """A crew whose processes say what the test says they say."""

    def __init__(self, *levels: list[dict[str, Any]] | Exception) -> None:
        self.levels, self.brought, self.stops = list(levels), [], 0
        self.on_play: Any = lambda: None

    def bring(self, users: int) -> None:
        self.brought.append(users)

    def play(self, _number: int) -> list[dict[str, Any]]:
        self.on_play()
        found = self.levels.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def stop(self) -> None:
        self.stops += 1


def course(folder: Path, plan: Tier, crew: Pretended) -> lead.Course:
    return lead.Course(folder, plan, crew)


def open_level(rate: float = 30.0) -> Level:
    return Level(rate_per_s=rate, arrivals="poisson", duration_s=45)


CLOSED = Tier(levels=[Level(users=4, duration_s=9), Level(users=8, duration_s=9)], processes=2)
SWEEP = Tier.model_validate(
    {
        "sweep": {
            "over": "rate_per_s",
            "start": 1.0,
            "factor": 2.0,
            "most": 16.0,
            "arrivals": "poisson",
            "duration_s": 9.0,
        }
    }
)


def test_all_levels_run_and_are_told(tmp_path: Path) -> None:
    crew = Pretended([note(0), note(1)], [note(0), note(1)])
    assert lead.lead(course(tmp_path, CLOSED, crew)) == 0
    assert crew.brought == [4, 8]
    told = artifact.read(tmp_path / "client.json")
    assert [level["users"] for level in told["levels"]] == [4, 8]
    assert (told["fault"], told["is_stopped"], told["ended_early"]) == (None, False, None)


def test_an_open_level_takes_one_dispatcher_per_process(tmp_path: Path) -> None:
    crew = Pretended([note(0), note(1), note(2)])
    lead.lead(course(tmp_path, Tier(levels=[open_level()], processes=3), crew))
    assert crew.brought == [3]


def test_a_sweep_ends_after_the_level_that_was_too_much(tmp_path: Path) -> None:
    crew = Pretended([note()], [note()], [note(flow=GROWN)], [note()])
    assert lead.lead(course(tmp_path, SWEEP, crew)) == 0  # a result, no fault
    told = artifact.read(tmp_path / "client.json")
    assert [level["rate_per_s"] for level in told["levels"]] == [1, 2, 4]
    assert [level["saturation"] is None for level in told["levels"]] == [True, True, False]
    assert told["ended_early"].startswith("level 3 is over-saturated: the queue grew")
    assert told["ended_early"].endswith("2 levels not run")


def test_levels_that_are_no_sweep_all_run_and_say_what_they_were(tmp_path: Path) -> None:
    crew = Pretended([note(flow=GROWN)], [note()])
    plan = Tier(levels=[open_level(), open_level()])
    assert lead.lead(course(tmp_path, plan, crew)) == 0
    told = artifact.read(tmp_path / "client.json")
    assert [bool(level["saturation"]) for level in told["levels"]] == [True, False]
    assert told["ended_early"] is None


def test_a_fault_of_one_process_ends_the_tier(tmp_path: Path) -> None:
    crew = Pretended([note(0), note(1, fault="no space left")], [note(0), note(1)])
    assert lead.lead(course(tmp_path, CLOSED, crew)) == lead.EXIT_FAULT
    told = artifact.read(tmp_path / "client.json")
    assert (told["fault"], len(told["levels"]), crew.stops) == ("no space left", 1, 1)


def test_a_crew_that_breaks_is_told_in_its_words(tmp_path: Path) -> None:
    crew = Pretended([note(0), note(1)], RuntimeError("level 2: client process 1 is gone"))
    assert lead.lead(course(tmp_path, CLOSED, crew)) == lead.EXIT_FAULT
    assert artifact.read(tmp_path / "client.json")["fault"] == "level 2: client process 1 is gone"


def test_told_to_stop_it_starts_no_other_level(tmp_path: Path) -> None:
    crew = Pretended([note(0), note(1)])
    one = course(tmp_path, CLOSED, crew)
    crew.on_play = one.stop
    assert lead.lead(one) == lead.EXIT_STOPPED
    told = artifact.read(tmp_path / "client.json")
    assert (len(told["levels"]), told["is_stopped"]) == (1, True)


def test_the_worst_process_speaks_for_all_and_counts_add_up() -> None:
    slow = note(1, cpu_share=0.9, loop_lag_ms_p99=70.0, requests=40, unsent=3, t_all_finished_one_ns=18, t_end_ns=44)
    found = client.merged(2, Level(users=4, duration_s=9), [note(0), slow])
    assert (found["level"], found["users"], found["requests"], found["unsent"]) == (2, 4, 140, 3)
    assert (found["cpu_share"], found["loop_lag_ms_p99"], found["loop_lag_ms_p50"]) == (0.9, 70.0, 1.0)
    assert (found["t_all_finished_one_ns"], found["t_end_ns"]) == (18, 44)
    assert [(one["process"], one["pid"], one["cpu_share"]) for one in found["processes"]] == [
        (0, 100, 0.2),
        (1, 101, 0.9),
    ]
    assert (
        client.merged(1, open_level(), [note(0), note(1, t_all_finished_one_ns=None)])["t_all_finished_one_ns"] is None
    )


def test_what_no_process_has_is_none_never_zero() -> None:
    nothing = dict.fromkeys(SPREADS)
    assert client.worst([note(0, **nothing), note(1, **nothing)])["schedule_delay_ms_p99"] is None


@pytest.mark.parametrize(("counts", "firsts"), [([2, 2], [0, 2]), ([3, 2, 2], [0, 3, 5]), ([1, 1], [0, 1])])
def test_seats_follow_each_other_over_the_processes(counts: list[int], firsts: list[int]) -> None:
    orders = lead._orders([(f"w{i}", count) for i, count in enumerate(counts)], 3, 77)
    assert [name for _, name in orders] == [f"w{i}" for i in range(len(counts))]
    assert [told["first_seat"] for told, _ in orders] == firsts
    assert {(told["level"], told["t_start_ns"]) for told, _ in orders} == {(3, 77)}
