import pytest

from tasks.sizing.cost import all_in_usd_per_task, sustained_usd_per_task


def test_all_in_by_hand():
    """15 minutes of a 1.20 USD machine are 0.30 USD; 10 tasks came out of them: 0.03 each."""
    assert all_in_usd_per_task(usd_per_hour=1.20, held_s=900, tasks=10) == pytest.approx(0.03)


def test_sustained_by_hand():
    """20 tasks in 2 minutes are 600 an hour; 1.20 USD an hour over 600 tasks: 0.002 each."""
    assert sustained_usd_per_task(usd_per_hour=1.20, window_s=120, tasks=20) == pytest.approx(0.002)


def test_no_successful_task_has_no_cost():
    assert all_in_usd_per_task(usd_per_hour=1.20, held_s=900, tasks=0) is None
    assert sustained_usd_per_task(usd_per_hour=1.20, window_s=120, tasks=0) is None
    assert sustained_usd_per_task(usd_per_hour=1.20, window_s=0, tasks=3) is None


def test_a_free_machine_costs_nothing():
    assert all_in_usd_per_task(usd_per_hour=0, held_s=900, tasks=10) == 0
