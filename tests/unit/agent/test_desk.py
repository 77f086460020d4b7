"""Search: the title weighs most, ties keep the corpus's order, unknown words find nothing."""

import pytest

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
