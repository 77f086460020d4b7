"""Log lines as Airflow's task runner writes them."""

import json

from tasks.stack.follow import Tail


def write(folder, task, *events, attempt=1, end="\n", logger="task.stdout"):
    path = folder / "dag_id=d" / "run_id=r" / f"task_id={task}" / f"attempt={attempt}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("\n".join(json.dumps({"event": event, "logger": logger}) for event in events) + end)
    return path


def test_each_printed_line_is_told_once(tmp_path):
    tail = Tail(tmp_path, "d", "r")
    assert list(tail.news()) == []
    write(tmp_path, "gate", "1 of 2", "2 of 2")
    assert list(tail.news()) == [("gate", "1 of 2"), ("gate", "2 of 2")]
    assert list(tail.news()) == []


def test_what_airflow_itself_says_is_left_out(tmp_path):
    write(tmp_path, "gate", "DAG bundles loaded", logger="airflow.dag_processing")
    write(tmp_path, "gate", "PASS")
    assert list(Tail(tmp_path, "d", "r").news()) == [("gate", "PASS")]


def test_a_line_that_is_still_being_written_waits_for_its_end(tmp_path):
    path = write(tmp_path, "gate", "whole")
    with path.open("a") as file:
        file.write('{"event": "ha')
    tail = Tail(tmp_path, "d", "r")
    assert list(tail.news()) == [("gate", "whole")]
    with path.open("a") as file:
        file.write('lf", "logger": "task.stdout"}\n')
    assert list(tail.news()) == [("gate", "half")]


def test_a_line_that_repeats_the_last_one_is_left_out_also_from_the_next_try(tmp_path):
    tail = Tail(tmp_path, "d", "r")
    write(tmp_path, "claim", "waiting: place 1")
    assert list(tail.news()) == [("claim", "waiting: place 1")]
    write(tmp_path, "claim", "waiting: place 1", attempt=2)
    assert list(tail.news()) == []


def test_what_a_task_fails_with_is_told(tmp_path):
    path = write(tmp_path, "gate", "begun")
    fault = {"exc_type": "StageFailed", "exc_value": "no gateway answers"}
    with path.open("a") as file:
        file.write(
            json.dumps({"event": "Task failed with exception", "logger": "task", "error_detail": [fault]}) + "\n"
        )
    assert list(Tail(tmp_path, "d", "r").news()) == [("gate", "begun"), ("gate", "StageFailed: no gateway answers")]
