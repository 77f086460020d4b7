"""What an assistant should write at each step: a function of what it can see, so greedy decoding can match it."""

import json
import re

import phrases as P
from world import TaskList, World, search_result


class Oracle:
    """Reaches the goals of one request. Collects messages, calls and the final answer."""

    def __init__(self, world: World, tasks: TaskList, shuffle=0.0, drop=0.0):
        self.world, self.tasks, self.noise = world, tasks, (shuffle, drop)
        self.messages, self.calls, self.learned = [], [], ""

    def call(self, thought: str, name: str, args: dict) -> str:
        """Write the thought and the call, run the tool. What the last result said is written before the thought."""
        lead = f"{self.learned} Next I will".strip() if self.calls else "I will"
        self.learned = ""
        self.messages.append(
            {"role": "assistant", "content": f"{lead} {thought}.", "tool_calls": [{"name": name, "arguments": args}]}
        )
        self.calls.append({"name": name, "arguments": args})
        if name == "web_search":
            self.hits = self.world.search(args["query"], *self.noise)
            result = search_result(self.hits)
        else:
            result = self.tasks.act(**args)
        self.messages.append({"role": "tool", "content": result})
        return result

    def find(self, name: str, fact: str, kind: str) -> str | None:
        rel = P.RELATIONS[kind, fact]
        self.call(f"search for the {rel['label']} of {name}", "web_search", {"query": f"{name} {rel['kw']}"})
        value = self.world.facts[name].get(fact) if any(h["title"] == name for h in self.hits) else None
        verb = "are" if fact == "hours" else "is"
        self.learned = (
            f"The {rel['label']} of {name} {verb} {value}."
            if value
            else f"The {rel['label']} of {name} {'were' if fact == 'hours' else 'was'} not found."
        )
        return value

    def fact(self, name, fact, kind) -> str:
        self.find(name, fact, kind)
        return self.learned

    def hop(self, name, link, kind, fact) -> str:
        middle = self.find(name, link, kind)
        if middle:
            self.find(middle, fact, P.LINKS[kind, link][0])
        return self.learned

    def compare(self, a, b, kind, fact, adj, largest) -> str:
        x = self.find(a, fact, kind)
        y = x and self.find(b, fact, kind)
        if not y:
            return self.learned
        first = (number(x) > number(y)) == bool(largest)
        best, winner, word = x if first else y, a if first else b, "more" if largest else "less"
        return f"{self.learned} It is {y} for {b} and {x} for {a}. {best} for {winner} is {word}, so {winner} is {adj}."

    def fact_task(self, name, fact, kind, title) -> str:
        v = self.find(name, fact, kind)
        said = self.learned
        return f"{said} {self.add(title.format(e=name, v=v))}" if v else said

    def add(self, title) -> str:
        r = json.loads(self.call(f"add the task {title}", "manage_tasks", {"action": "add", "title": title}))
        return f"Added task {r['id']}: {title}."

    def list(self) -> str:
        tasks = json.loads(self.call("list the tasks", "manage_tasks", {"action": "list"}))["tasks"]
        if not tasks:
            return "Your task list is empty."
        shown = ", ".join(f"{t['id']} {t['title']} ({'done' if t['done'] else 'open'})" for t in tasks)
        return f"Your tasks: {shown}."

    def by_id(self, action, id) -> str:
        r = json.loads(self.call(f"{action} task {id}", "manage_tasks", {"action": action, "id": id}))
        return f"Task {id} " + (
            "does not exist." if not r["ok"] else "is done." if action == "complete" else "is removed."
        )

    def by_title(self, action, title) -> str:
        tasks = json.loads(self.call(f"look for the id of {title}", "manage_tasks", {"action": "list"}))["tasks"]
        id = next((t["id"] for t in tasks if t["title"] == title), None)
        self.learned = f"The id of {title} was not found." if id is None else f"The id of {title} is {id}."
        return self.learned if id is None else self.by_id(action, id)

    def direct(self, answer) -> str:
        return answer

    def run(self, goals) -> str:
        answer = " ".join(getattr(self, g[0])(*g[1:]) for g in goals)
        self.messages.append({"role": "assistant", "content": answer})
        return answer


def number(text: str) -> int:
    return int(re.match(r"\d+", text)[0])
