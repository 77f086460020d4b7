"""Sessions: requests of a user in many wordings, and the oracle's play of each.

A request is a text and a list of goals; a goal is the name of a method of the Oracle and its arguments.
"""

import random
import re

import phrases as P
from oracle import Oracle, number
from world import WORDS, TaskList, World


class Requests:
    """Draws user requests. held=True uses the held-out phrasings only."""

    def __init__(self, world: World, rng: random.Random, held=False):
        self.w, self.r, self.held = world, rng, held

    def pick(self, train, held):
        return self.r.choice(held if self.held else train)

    def entity(self, kind: str, fact: str | None = None, known=0.9) -> str:
        """A name of the kind, mostly one whose document holds the fact. Sometimes a name that no document knows."""
        x = self.r.random()
        if fact and x < known:
            have = [n for n in self.w.by_type[kind] if fact in self.w.facts[n]]
            if have:
                return self.r.choice(have)
        if fact and x < known + (1 - known) / 2:
            name = self.w.names.make(kind)
            self.w.facts[name] = {}
            return name
        return self.r.choice(self.w.by_type[kind])

    def ask(self, kind: str, fact: str, name: str) -> str:
        """A question or a command about one fact. The name may itself be a phrase."""
        rel, r = P.RELATIONS[kind, fact], self.r
        if r.random() < 0.55:
            text = r.choice(rel["q_held"] if self.held else rel["q"]).format(e=name)
            return self.pick(P.Q_OPEN, P.Q_OPEN_HELD + [""]) + text[0].upper() + text[1:]
        return self.command(rel).format(e=name)

    def command(self, rel: dict, end="") -> str:
        """A command with a noun phrase, or with an indirect question where that is good English."""
        np = self.r.choice(rel["np_held"] if self.held else rel["np"])
        opens = self.pick(P.NP_OPEN, P.NP_OPEN_HELD)
        while (end and not opens.endswith(end)) or (
            opens in P.NOUN_ONLY and re.match("(who|when|how|what|which|where|in|on|at) ", np)
        ):
            opens = self.pick(P.NP_OPEN, P.NP_OPEN_HELD)
        return opens.replace("{n}", np)

    def relation(self):
        return self.r.choice(list(P.RELATIONS))

    def search_one(self, known=0.9):
        kind, fact = self.relation()
        name = self.entity(kind, fact, known)
        self.last = (name, kind)
        return self.ask(kind, fact, name), [("fact", name, fact, kind)]

    def not_found(self):
        return self.search_one(known=0.0)

    def follow_up(self):
        name, kind = self.last
        fact = self.r.choice([f for (t, f) in P.RELATIONS if t == kind])
        return self.pick(P.RELATIONS[kind, fact]["fu"], P.RELATIONS[kind, fact]["fu_held"]), [
            ("fact", name, fact, kind)
        ]

    def two_hop(self):
        kind, link = self.r.choice(list(P.LINKS))
        kind2, phrases, phrases_held = P.LINKS[kind, link]
        have = [
            n
            for n in self.w.by_type[kind]
            if link in self.w.facts[n] and self.w.type_of.get(self.w.facts[n][link]) == kind2
        ]
        name = self.r.choice(have) if have and self.r.random() < 0.95 else self.entity(kind, link)
        fact = self.r.choice([f for (t, f) in P.RELATIONS if t == kind2])
        middle = self.w.facts[name].get(link)
        if middle and middle not in self.w.facts:
            self.w.facts[middle] = {}
        return self.ask(kind2, fact, self.pick(phrases, phrases_held).format(e=name)), [("hop", name, link, kind, fact)]

    def compare(self):
        kind, fact = self.r.choice(list(P.COMPARE))
        adj, largest = self.r.choice(P.COMPARE[kind, fact])
        a, b = self.entity(kind, fact, 0.97), self.entity(kind, fact, 0.97)
        x, y = self.w.facts[a].get(fact), self.w.facts[b].get(fact)
        if a == b or (x and y and number(x) == number(y)):
            return self.compare()
        return self.pick(P.COMPARE_Q, P.COMPARE_Q_HELD).format(a=a, b=b, adj=adj), [
            ("compare", a, b, kind, fact, adj, largest)
        ]

    def search_task(self):
        r = self.r
        if r.random() < 0.5:
            kind, fact = r.choice([k for k in P.RELATIONS if k[1] in ("founder", "maintainer", "architect", "mayor")])
            verb = r.choice(P.CONTACT)
            what, title = f"{verb} {r.choice(('them', 'that person'))}", verb + " {v}"
        else:
            kind, fact = r.choice(list(P.FACT_TASK))
            what, title = P.FACT_TASK[kind, fact]
        tail = self.pick(P.TASK_TAIL, P.TASK_TAIL_HELD).format(x=what)
        name = self.entity(kind, fact, 0.95)
        text = self.command(P.RELATIONS[kind, fact], end="{n}.")[:-1].format(e=name) + tail
        return text, [("fact_task", name, fact, kind, title)]

    def title(self) -> str:
        r = self.r
        if r.random() < 0.15 and not self.held:
            return " ".join(r.choice(WORDS) for _ in range(r.randint(2, 4)))
        obj = r.choice(P.OBJECT) if self.held or r.random() < 0.7 else r.choice(("the ", "a ", "")) + r.choice(WORDS)
        people = self.w.by_type["person"]
        if r.random() < 0.12:
            return f"{r.choice(P.CONTACT)} {r.choice(people)}"
        return f"{r.choice(P.VERB)} {obj}" + r.choice(P.TAIL).format(p=r.choice(people), w=self.w.names.word())

    def add(self):
        t = self.title()
        return self.pick(P.ADD, P.ADD_HELD).format(t=t), [("add", t)]

    def list(self):
        return self.pick(P.LIST, P.LIST_HELD), [("list",)]

    def known_id(self, tasks: TaskList, known=0.9) -> int:
        if tasks.tasks and self.r.random() < known:
            return self.r.choice(tasks.tasks)["id"]
        return self.r.randint(1, 60)

    def by_id(self, tasks, known=0.9):
        i = self.known_id(tasks, known)
        if self.r.random() < 0.5:
            return self.pick(P.DONE_ID, P.DONE_ID_HELD).format(i=i), [("by_id", "complete", i)]
        return self.pick(P.DROP_ID, P.DROP_ID_HELD).format(i=i), [("by_id", "remove", i)]

    def by_title(self, tasks, known=0.9):
        t = self.r.choice(tasks.tasks)["title"] if tasks.tasks and self.r.random() < known else self.title()
        if self.r.random() < 0.5:
            return self.pick(P.DONE_T, P.DONE_T_HELD).format(t=t), [("by_title", "complete", t)]
        return self.pick(P.DROP_T, P.DROP_T_HELD).format(t=t), [("by_title", "remove", t)]

    def multi(self, tasks):
        r = self.r
        if r.random() < 0.55:
            ts = [self.title() for _ in range(r.choice((2, 2, 3, 3, 4)))]
            sep = r.choice((", ", ", ", "; "))
            joined = sep.join(ts[:-1]) + (" and " if sep == ", " else "; ") + ts[-1]
            n = {2: "two", 3: "three", 4: "four"}[len(ts)]
            return self.pick(P.MULTI_ADD, P.MULTI_ADD_HELD).format(ts=joined, n=n), [("add", t) for t in ts]
        first = self.task_part(tasks)
        second = (
            self.task_part(tasks) if r.random() < 0.6 else self.search_one(0.97) if r.random() < 0.6 else self.list()
        )
        if r.random() < 0.3:
            first, second = second, first
        if (
            any(g[0].startswith("by_") for g in first[1])
            and any(g[0].startswith("by_") for g in second[1])
            and first[1][0][-1] == second[1][0][-1]
        ):
            return self.multi(tasks)
        return first[0] + self.pick(P.JOIN, P.JOIN_HELD) + second[0], first[1] + second[1]

    def task_part(self, tasks):
        return self.add() if self.r.random() < 0.55 or not tasks.tasks else self.by_id(tasks)

    def direct(self):
        answer, (train, held) = self.r.choice(list(P.DIRECT.items()))
        return self.pick(train, held), [("direct", answer)]


def random_tasks(req: Requests, rng: random.Random) -> TaskList:
    """A task list that is empty in half of the sessions and has up to five entries else."""
    n = rng.choice((0, 0, 0, 1, 2, 3, 3, 4, 5))
    ids = list(range(1, n + 1)) if rng.random() < 0.5 else sorted(rng.sample(range(1, 60), n))
    return TaskList(
        [{"id": i, "title": req.title(), "done": rng.random() < 0.25} for i in ids],
        rng.choice((1, 1, 1, rng.randint(1, 60))),
    )


WEIGHTS = dict(
    search_one=17,
    two_hop=18,
    compare=16,
    search_task=11,
    add=6,
    list=4,
    by_id=6,
    by_title=8,
    multi=12,
    direct=5,
    not_found=8,
)


def request(req: Requests, tasks: TaskList, kind: str):
    method = getattr(req, kind)
    return method(tasks) if kind in ("by_id", "by_title", "multi") else method()


def dialogue(world: World, rng: random.Random, held=False, turns=None, kind=None) -> list[dict]:
    """One session: one to four requests that share the world and the task list."""
    req = Requests(world, rng, held)
    tasks = random_tasks(req, rng)
    messages = []
    for i in range(turns or rng.choice((1, 1, 1, 1, 2, 2, 3, 4))):
        k = kind or rng.choices(list(WEIGHTS), WEIGHTS.values())[0]
        if i and k == "search_one" and hasattr(req, "last") and rng.random() < 0.5:
            k = "follow_up"
        elif k != "search_one":
            vars(req).pop("last", None)
        text, goals = request(req, tasks, k)
        oracle = Oracle(world, tasks, *((0.15, 0.02) if not held else (0, 0)))
        oracle.run(goals)
        messages += [{"role": "user", "content": casual(text, rng)}] + oracle.messages
    return messages


def casual(text: str, rng: random.Random) -> str:
    """Now and then a user forgets the full stop at the end."""
    return text[:-1] if rng.random() < 0.12 and text[-1] in ".?!" else text
