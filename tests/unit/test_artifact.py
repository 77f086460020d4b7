import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks import artifact


def test_write_once_never_edits_what_exists(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    artifact.write_once(path, {"verdict": "PASS"})
    artifact.write_once(path, {"verdict": "FAIL"})
    assert artifact.read(path) == {"verdict": "PASS"}


def test_a_failed_write_leaves_nothing_and_keeps_the_old(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    artifact.write(path, {"a": 1})
    circular: dict[str, object] = {}
    circular["self"] = circular
    with pytest.raises(ValueError, match="Circular"):
        artifact.write(path, circular)
    assert artifact.read(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_full_disk_leaves_no_half_file(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes the kernel refuse the write in the middle, as a full disk does."""
    code = (
        "import resource, signal, sys; from pathlib import Path; from tasks import artifact\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "artifact.write(Path(sys.argv[1]), {'rows': ['x' * 50] * 1000})\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.json")], capture_output=True, text=True)
    assert done.returncode != 0
    assert "File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00\x01", '{"a": 1'])
def test_broken_json_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(artifact.BrokenArtifact, match=str(path)):
        artifact.read(path)


def test_a_torn_last_row_is_dropped_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}\n{"n": ')
    assert artifact.read_rows(path) == [{"n": 1}, {"n": 2}]
    path.write_text('{"n": 1}\n{"n": \n{"n": 3}\n')
    with pytest.raises(artifact.BrokenArtifact, match=r"requests\.jsonl:2"):
        artifact.read_rows(path)


def test_rows_come_back_as_they_went(tmp_path: Path) -> None:
    rows = [{"a": None, "b": "x\ny"}, {"a": 1.5, "b": "ü"}]
    assert artifact.read_rows(artifact.write_rows(tmp_path / "r.jsonl", rows)) == rows
    assert json.loads((tmp_path / "r.jsonl").read_text().splitlines()[0])["b"] == "x\ny"
    assert artifact.read_rows(tmp_path / "none.jsonl") == []
