from pathlib import Path

import pytest

from tasks.document import Document, InvalidDocument, parse, read


class Inner(Document):
    rate_rps: float
    note: str = ""


class Outer(Document):
    name: str
    levels: list[Inner] = []
    labels: dict[str, str] = {}


def write(folder: Path, text: str) -> Path:
    path = folder / "thing.yaml"
    path.write_text(text)
    return path


def test_every_fault_is_named_at_once_with_file_and_field(tmp_path: Path) -> None:
    path = write(tmp_path, "nam: x\nlevels: [{rate_rps: fast}, {rate: 2, rate_rps: 1}]\n")
    with pytest.raises(InvalidDocument) as error:
        read(path, Outer)
    lines = str(error.value).splitlines()
    assert len(lines) == 4
    assert all(line.startswith(f"{path}: ") for line in lines)
    assert f"{path}: name: is missing" in lines
    assert f"{path}: nam: not a known field; known: labels, levels, name" in lines
    assert f"{path}: levels.1.rate: not a known field; known: note, rate_rps" in lines
    assert any("levels.0.rate_rps" in line and "'fast'" in line for line in lines)


@pytest.mark.parametrize("text", ["name: a\nname: b\n", "name: a\nlabels: {x: '1', x: '2'}\n"])
def test_a_repeated_key_is_a_fault_and_names_both_lines(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidDocument, match=r"repeated key: '\w+' stands on line \d and again on line \d"):
        read(write(tmp_path, text), Outer)


@pytest.mark.parametrize("text", ["", "- a\n", "just words", "a: [", "a: \x00"])
def test_rubbish_is_refused_with_the_file_name(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidDocument, match=str(path)):
        read(path, Outer)


def test_a_number_is_not_taken_for_a_string(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument, match=r"labels\.x"):
        read(write(tmp_path, "name: a\nlabels: {x: 1}\n"), Outer)


def test_the_digest_is_of_the_content_not_of_the_layout(tmp_path: Path) -> None:
    a = read(write(tmp_path, "name: a\nlabels: {x: 'y'}\n"), Outer).digest()
    b = read(write(tmp_path, "# a comment\nlabels:\n  x: y\nname: 'a'\n"), Outer).digest()
    c = read(write(tmp_path, "name: b\nlabels: {x: 'y'}\n"), Outer).digest()
    assert a == b != c


def test_a_record_is_frozen() -> None:
    record = parse({"name": "a"}, Outer, source="test")
    with pytest.raises(ValueError, match="frozen"):
        record.name = "b"  # type: ignore[misc]
