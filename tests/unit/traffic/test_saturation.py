"""Over-saturation by queues whose growth is known by construction."""

import random

import pytest

from tasks.traffic import saturation
from tasks.traffic.saturation import Flow

S = 1_000_000_000


def served(arrivals: list[float], *, per_s: float) -> list[float]:
    """When each is done by one server that takes 1 / per_s for each, in turn."""
    free, found = 0.0, []
    for at in arrivals:
        free = max(free, at) + 1 / per_s
        found.append(free)
    return found


def flow(begun: list[float], ended: list[float], *, seconds: float = 60) -> Flow:
    ns = [[5 * S + int(at * S) for at in times] for times in (begun, ended)]
    return saturation.flow(*ns, t_start_ns=5 * S, t_end_ns=5 * S + int(seconds * S))


def poisson(rate: float, seed: int, *, seconds: float = 60) -> list[float]:
    rng, at, found = random.Random(seed), 0.0, []
    while (at := at + rng.expovariate(rate)) < seconds:
        found.append(at)
    return found


def test_a_flow_counts_what_it_should() -> None:
    """Arrivals each second from 0.5 on, none done: in flight grows by one a second."""
    begun = [i + 0.5 for i in range(60)]
    found = flow(begun, [])
    assert (found.arrived, found.completed, found.seconds) == (40, 0, 40)
    assert found.in_flight_middle == pytest.approx(30)  # 20 at its beginning, 40 at its end
    assert found.in_flight_last == pytest.approx(50)
    steady = flow(begun, [at + 0.25 for at in begun])
    assert steady.in_flight_middle == pytest.approx(steady.in_flight_last) == pytest.approx(0.25)


def test_twice_the_capacity_is_seen_and_told() -> None:
    for seed in range(20):
        begun = poisson(20, seed)
        words = saturation.of_open(flow(begun, served(begun, per_s=10)))
        assert words is not None and "the queue grew" in words
        assert "10/s done of" in words


@pytest.mark.parametrize("load", [0.5, 0.9])
def test_a_queue_that_keeps_up_is_not(load: float) -> None:
    alarms = 0
    for seed in range(200):
        begun = poisson(10 * load, seed)
        alarms += saturation.of_open(flow(begun, served(begun, per_s=10))) is not None
    assert alarms == 0


def test_a_lack_of_a_tenth_shows_when_there_is_enough_to_see_it() -> None:
    begun = poisson(110, 3)
    assert saturation.of_open(flow(begun, served(begun, per_s=100)))
    few = poisson(1.1, 3)
    assert saturation.of_open(flow(few, served(few, per_s=1))) is None  # 22 arrivals a third prove nothing


def test_no_arrivals_no_verdict() -> None:
    assert saturation.of_open(flow([], [])) is None


def test_shares_of_processes_add_up() -> None:
    begun = poisson(20, 1)
    ended = served(begun, per_s=10)
    whole = flow(begun, ended)
    parts = [flow(begun[i::2], ended[i::2]) for i in range(2)]
    added = parts[0] + parts[1]
    assert (added.arrived, added.completed, added.seconds) == (whole.arrived, whole.completed, whole.seconds)
    assert added.in_flight_last == pytest.approx(whole.in_flight_last)


def test_more_users_and_no_more_done() -> None:
    def done(completed: int) -> Flow:
        return Flow(arrived=completed, completed=completed, in_flight_middle=4, in_flight_last=4, seconds=40)

    assert saturation.of_closed(done(100), None) is None  # nothing to compare with
    assert saturation.of_closed(done(150), done(100)) is None
    words = saturation.of_closed(done(102), done(100))
    assert words == "more users, no more done: 2.55/s, 2.5/s at the level before"
