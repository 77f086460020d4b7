"""What counts as warm-up, who sits where, until when. Times are made up, in seconds."""

from tasks.plan import Level
from tasks.traffic.level import Running, spread

S = 1_000_000_000


def running(users: int = 2, duration_s: float = 10, warmup_s: float = 0) -> Running:
    offered = Level(users=users, duration_s=duration_s, warmup_s=warmup_s)
    return Running(1, offered, t_start_ns=100 * S, started_at=0.0)


def test_what_was_sent_before_every_user_had_finished_one_is_warmup() -> None:
    level = running()
    level.finish(0, now_ns=101 * S, delay_ms=0)
    assert level.is_warmup(102 * S)  # user 1 has finished nothing yet
    level.finish(0, now_ns=103 * S, delay_ms=0)
    level.finish(1, now_ns=104 * S, delay_ms=0)
    assert level.is_warmup(103 * S)  # sent before, though it ends now
    assert not level.is_warmup(104 * S)
    level.finish(1, now_ns=109 * S, delay_ms=0)
    assert not level.is_warmup(105 * S)  # a later end moves nothing


def test_the_plans_warmup_is_kept_although_all_have_finished() -> None:
    level = running(users=1, warmup_s=5)
    level.finish(0, now_ns=101 * S, delay_ms=0)
    assert level.is_warmup(104 * S)
    assert not level.is_warmup(105 * S)


def test_a_level_is_open_until_its_end_or_its_cut() -> None:
    level = running()
    assert level.is_open(109 * S)
    assert not level.is_open(110 * S)
    level.is_cut = True
    assert not level.is_open(101 * S)


def test_seats_are_numbered_as_they_are_taken() -> None:
    level = running()
    assert [level.enter(), level.enter()] == [0, 1]
    level.leave()
    assert level.active == 1


def test_spread_is_by_nearest_rank() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert spread("x_ms", values) == {"x_ms_p50": 50.0, "x_ms_p99": 99.0, "x_ms_max": 100.0}
    assert spread("x_ms", [7.0]) == {"x_ms_p50": 7.0, "x_ms_p99": 7.0, "x_ms_max": 7.0}
    assert spread("x_ms", []) == {"x_ms_p50": None, "x_ms_p99": None, "x_ms_max": None}
