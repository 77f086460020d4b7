"""What `up` and `down` decide before any of Airflow runs. The rest is tests/e2e."""

import fcntl
import socket

import pytest

from tasks import artifact
from tasks.stack import StackFailed, local


def test_nothing_is_running_in_an_empty_home_and_down_is_no_error(armwise_home):
    assert local.running() is None
    assert local.down(lambda _: None) == []
    assert local.down(lambda _: None) == []


def test_an_address_without_a_living_part_is_stale(armwise_home):
    artifact.write(armwise_home / "stack.json", {"format": 1, "airflow_port": 8080, "gateway_port": 1})
    assert local.running() is None


def test_the_port_of_the_last_time_is_kept_unless_it_is_taken(armwise_home):
    port = local.free_port()
    artifact.write(armwise_home / "stack.json", {"format": 1, "airflow_port": port, "gateway_port": 1})
    assert local._choose(armwise_home, None).airflow_port == port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert local._choose(armwise_home, None).airflow_port != port


def test_two_that_start_or_stop_one_stack_at_once_are_told(armwise_home):
    with (armwise_home / "stack.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StackFailed, match="another `armwise up` or `armwise down` is at work on"):
            local.down()
