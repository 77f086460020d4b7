"""The user's task list: JSON, one list per played task, lost when the task is over.

Every reply holds the whole list, since the model's only memory is the conversation. Ids are never used twice.
"""

import json
from typing import Annotated, Any, Literal

from tasks.agent.desk import Desk

MOST_TASKS = 50
LONGEST_TITLE = 200

EXAMPLES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"action": "list"}, {"ok": True, "tasks": []}),
    (
        {"action": "add", "title": "buy milk"},
        {"ok": True, "id": 1, "tasks": [{"id": 1, "title": "buy milk", "done": False}]},
    ),
    ({"action": "complete", "id": 7}, {"ok": False, "error": "no task with id 7", "tasks": []}),
]


def manage_tasks(
    action: Annotated[Literal["add", "list", "complete", "remove"], "What to do."],
    title: Annotated[str | None, "Title of the new task. Only for add."] = None,
    id: Annotated[int | None, "Id of the task. Only for complete and remove."] = None,
    *,
    desk: Desk,
) -> str:
    """Change or show the task list of the user. Returns the whole list with the id, title and state of each task."""
    reply = _add(desk, title) if action == "add" else _change(desk, action, id) if action != "list" else {"ok": True}
    return json.dumps(reply | {"tasks": desk.tasks}, ensure_ascii=False)


def _add(desk: Desk, title: str | None) -> dict[str, Any]:
    if not title:
        return _error("add needs a title")
    if len(title) > LONGEST_TITLE:
        return _error(f"the title is longer than {LONGEST_TITLE} characters")
    if len(desk.tasks) >= MOST_TASKS:
        return _error(f"the list is full: {MOST_TASKS} tasks")
    desk.tasks.append({"id": desk.next_id, "title": title, "done": False})
    desk.next_id += 1
    return {"ok": True, "id": desk.next_id - 1}


def _change(desk: Desk, action: str, id: int | None) -> dict[str, Any]:
    found = next((task for task in desk.tasks if task["id"] == id), None)
    if found is None:
        return _error(f"no task with id {id}")
    if action == "complete":
        found["done"] = True
    else:
        desk.tasks.remove(found)
    return {"ok": True}


def _error(words: str) -> dict[str, Any]:
    return {"ok": False, "error": words}
