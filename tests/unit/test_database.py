import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import sqlalchemy
from conftest import reachable_folder

from tasks import database, postgres

HOLD = "from tasks import database; database.engine(); print('holding', flush=True); input()"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty state folder with an embedded server of its own, which is stopped at the end."""
    with reachable_folder() as folder:
        monkeypatch.setenv("ARMWISE_HOME", str(folder))
        monkeypatch.delenv("ARMWISE_DB_URL", raising=False)
        monkeypatch.delenv("ARMWISE_AIRFLOW_DB_URL", raising=False)
        yield folder
        database.down()


def holder() -> subprocess.Popen[str]:
    """Another process that uses the server until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    return process


def end(process: subprocess.Popen[str], by: signal.Signals | None = None) -> None:
    if by is None:
        process.communicate("\n", timeout=30)
    else:
        process.send_signal(by)
        process.communicate(timeout=30)


def servers() -> list[psutil.Process]:
    """Processes of the embedded server of this home: one, or none."""
    found = []
    for process in psutil.process_iter(["cmdline", "name"]):
        line = process.info["cmdline"] or []
        if process.info["name"] == "postgres" and str(postgres.folder() / "data") in line:
            found.append(process)
    return found


def wait_until(true: Callable[[], bool], *, within_s: float, saying: str) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, f"not within {within_s} s: {saying}"
        time.sleep(0.05)


def gone() -> bool:
    return not servers()


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg2", "postgresql+asyncpg"])
def test_a_url_of_ones_own_gets_our_driver(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARMWISE_DB_URL", f"{scheme}://me:p%40ss@db.example:5433/rows")
    assert database.url() == "postgresql+psycopg2://me:p%40ss@db.example:5433/rows"
    assert database.connection_uri() == "postgres://me:p%40ss@db.example:5433/rows"
    assert database.available()


@pytest.mark.parametrize("given", ["mysql://me@host/db", "host=localhost", "sqlite:///rows.db"])
def test_a_url_of_something_else_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARMWISE_DB_URL", given)
    with pytest.raises(database.DatabaseAway, match=r"ARMWISE_DB_URL: must be postgresql://"):
        database.url()


def test_an_unknown_database_is_answered_with_the_known_ones() -> None:
    with pytest.raises(database.DatabaseAway, match="no database 'arimwise'; known: armwise, airflow"):
        database.url("arimwise")


def test_none_means_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARMWISE_DB_URL", "none")
    assert not database.available()
    with pytest.raises(database.DatabaseAway, match=r"set ARMWISE_DB_URL \(now: none\)"):
        database.engine()


def test_a_password_is_not_in_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARMWISE_DB_URL", "postgresql://me:secret@127.0.0.1:1/rows")
    with pytest.raises(database.DatabaseAway, match="does not answer") as fault:
        database.engine()
    assert "secret" not in str(fault.value)


def test_a_long_home_gets_a_short_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = len(os.fsencode(tmp_path)) + len("//postgres/data/.s.PGSQL.5432")
    monkeypatch.setenv("ARMWISE_HOME", str(tmp_path / ("x" * (107 - inside))))
    assert postgres.socket_folder() == postgres.folder() / "data"
    monkeypatch.setenv("ARMWISE_HOME", str(tmp_path / ("x" * (108 - inside))))
    assert postgres.socket_folder() != postgres.folder() / "data"
    assert len(os.fsencode(postgres.socket_folder())) < 60


@pytest.mark.services
def test_the_last_user_to_go_stops_the_server(home: Path) -> None:
    first, second = holder(), holder()
    (server,) = servers()
    end(first)
    time.sleep(1)
    assert server.is_running()
    assert database.postgres.running()
    end(second)
    wait_until(gone, within_s=20, saying="the server stopped after its last user")


@pytest.mark.services
def test_a_killed_user_does_not_keep_the_server(home: Path) -> None:
    end(holder(), signal.SIGKILL)
    wait_until(gone, within_s=20, saying="the server stopped after its killed user")


@pytest.mark.services
def test_up_keeps_it_and_down_stops_it(home: Path) -> None:
    database.up()
    end(holder())
    time.sleep(1)
    assert len(servers()) == 1
    assert database.down()
    assert gone()
    assert not database.down()


@pytest.mark.services
def test_nothing_listens_on_tcp_and_strangers_cannot_reach_the_socket(home: Path) -> None:
    database.up()
    (server,) = servers()
    family = [server, *server.children(recursive=True)]
    assert not [found for process in family for found in process.net_connections("inet")]
    assert stat.S_IMODE(postgres.socket_folder().stat().st_mode) == 0o700


@pytest.mark.services
def test_a_long_home_with_odd_characters_works(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARMWISE_HOME", str(home / ("it's 100% ü " + "x" * 100)))
    database.up()
    socket = postgres.socket_folder()
    with database.engine("airflow").connect() as connection:
        assert connection.execute(sqlalchemy.text("select current_user")).scalar() == "airflow"
    assert database.down()
    assert not socket.exists()


@pytest.mark.services
def test_a_socket_folder_of_somebody_else_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARMWISE_HOME", str(home / ("x" * 100)))
    place = postgres.socket_folder()
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    try:
        with pytest.raises(database.DatabaseAway, match="must be a folder of user"):
            database.engine()
    finally:
        place.rmdir()


@pytest.mark.services
def test_a_crash_half_way_through_is_made_good(home: Path) -> None:
    """A killed initdb, then a machine that went down and gave the server's process number to something else."""
    draft = home / "postgres" / "data.new"
    draft.mkdir(parents=True)
    (draft / "PG_VERSION").write_text("18\n")
    database.up()
    (server,) = servers()
    note = (home / "postgres" / "data" / "postmaster.pid").read_text()
    for process in [server, *server.children()]:
        process.kill()
    psutil.wait_procs([server], timeout=10)
    (home / "postgres" / "data" / "postmaster.pid").write_text(note.replace(str(server.pid), str(os.getpid()), 1))
    with database.engine().connect() as connection:
        assert connection.execute(sqlalchemy.text("select count(*) from run")).scalar() == 0


@pytest.mark.services
def test_a_server_that_does_not_start_says_why(home: Path) -> None:
    database.up()
    database.down()
    with (home / "postgres" / "data" / "postgresql.conf").open("a") as file:
        file.write("shared_buffers = 'plenty'\n")
    with pytest.raises(database.DatabaseAway, match="pg_ctl failed") as fault:
        database.engine()
    assert "shared_buffers" in str(fault.value)


@pytest.mark.services
def test_armwise_sql_starts_the_server_and_stops_it_again(home: Path) -> None:
    armwise = [sys.executable, "-c", "from tasks.cli import main; main()", "sql"]
    asked = [*armwise, "select session_user, current_user"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "session_user,current_user\narmwise_read,armwise_read\n"
    wait_until(gone, within_s=20, saying="the server stopped after the question")
    refused = subprocess.run([*armwise, "reset role"], capture_output=True, text=True, check=False, timeout=120)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("armwise: cannot open RESET query as cursor")
