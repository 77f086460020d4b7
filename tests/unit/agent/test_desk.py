"""Search: the title weighs most, ties keep the corpus's order, unknown words find nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks import settings
from tasks.agent.desk import Desk, best, index_of

pytestmark = pytest.mark.services  # imports in a process of their own

DOCUMENTS = [
    {"title": "Alpha Mill", "snippet": "It is near Beta Mill. The architect is Gamma."},
    {"title": "Beta Mill", "snippet": "Visitors pay 4 euros."},
    {"title": "Gamma", "snippet": "Gamma drew Alpha Mill, Beta Mill and Delta Mill."},
    {"title": "Twin One", "snippet": "same words"},
    {"title": "Twin Two", "snippet": "same words"},
]


@pytest.mark.parametrize(
    ("query", "first"),
    [("Beta Mill", "Beta Mill"), ("alpha MILL price?", "Alpha Mill"), ("gamma", "Gamma"), ("same", "Twin One")],
)
def test_first_hit(query: str, first: str) -> None:
    assert best(index_of(DOCUMENTS), query)[0]["title"] == first


def test_no_known_word_finds_nothing() -> None:
    index = index_of(DOCUMENTS)
    assert best(index, "zzz") == best(index, "") == best(index, "?!") == []


def test_at_most_three_and_only_documents_that_share_a_word() -> None:
    index = index_of(DOCUMENTS)
    assert len(best(index, "mill gamma same visitors")) == 3
    assert [d["title"] for d in best(index, "euros")] == ["Beta Mill"]


def test_a_desk_has_its_own_copy_of_the_tasks() -> None:
    given = [{"id": 7, "title": "t", "done": False}]
    one, two = (Desk(index_of(DOCUMENTS), given) for _ in range(2))
    one.tasks[0]["done"] = True
    assert not two.tasks[0]["done"] and not given[0]["done"]
    assert one.next_id == 8


def test_nothing_that_measures_touches_a_library_that_takes_the_gpu(tmp_path: Path) -> None:
    """On a GPU host they are all installed, and bm25s would try JAX: 98 GiB of the measured GPU were gone."""
    for name in ("jax", "torch", "cupy", "tensorflow"):
        package = tmp_path / name
        package.mkdir()
        (package / "__init__.py").write_text(f"raise SystemExit('{name} was imported')\n")
    code = (
        "import sys, tasks.stages.gate, tasks.stages.drive\n"
        "from tasks.agent import golden, graph\n"
        "from tasks.traffic import work\n"
        "work.rehearse(golden.load('v1')[:2])\n"
        "print('jax' in sys.modules)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(settings.root())])}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "False\n"), ran.stderr[-2000:]
