"""What the console script says and how it ends, whatever a command raises."""

import sys

import pytest

from tasks import cli
from tasks.catalog import UnknownName
from tasks.stage import StageFailed, Stopped


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StageFailed("judge: fail_on: slo_fail"), 1),
        (UnknownName("deploy/arms: no 'x'; known: y"), 2),
        (OSError(28, "No space left on device", "rows"), 2),
        (Stopped("stopped by SIGTERM"), 143),
    ],
)
def test_one_message_and_the_exit_code_of_its_kind(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise error

    monkeypatch.setattr(cli, "app", lambda: command)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    assert capsys.readouterr().err == f"armwise: {error}\n"


def test_an_unknown_command_is_wrong_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["armwise", "lode"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
