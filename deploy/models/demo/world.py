"""A world of invented entities: their names, one document per entity, a search engine over the documents, a task list.

Nothing in it exists. A name is built from syllables, about one in seven from an ordinary word.
"""

import json
import math
import random
import re

import phrases as P


def english_words() -> list[str]:
    """Ordinary words from the help texts that ship with Python. They make task titles and some names less regular."""
    from pydoc_data import topics

    words = set(re.findall(r"\b[a-z]{3,9}\b", " ".join(topics.topics.values())))
    return sorted(w for w in words if re.search("[aeiou]", w))


WORDS = english_words()


STOP = {"The", "She", "His", "Her", "And", "For", "Its"}


class Names:
    """Random names. Never a word from `banned`, so that the held-out corpus stays unseen."""

    def __init__(self, rng: random.Random, banned=frozenset(), english=0.15, rare=0.15):
        self.rng, self.banned, self.english, self.rare, self.used = rng, banned, english, rare, set()

    def word(self) -> str:
        r = self.rng
        while True:
            if r.random() < self.english:
                w = r.choice(WORDS).capitalize()
            else:
                w = "".join(self.syllable() for _ in range(r.choice((1, 2, 2, 2))))
                w = (w + r.choice(P.ENDING) if r.random() < 0.35 and w[-1] not in "aeiou" else w).capitalize()
            if 3 <= len(w) <= 12 and w not in self.banned and w not in STOP:
                return w

    def syllable(self) -> str:
        r = self.rng
        part = lambda usual, rare: r.choice(rare if r.random() < self.rare else usual)
        return (
            part(P.ONSET, P.RARE_ONSET)
            + part(P.NUCLEUS, P.RARE_NUCLEUS)
            + (part(P.CODA, P.RARE_CODA) if r.random() < 0.45 else "")
        )

    def unique(self, make) -> str:
        while (name := make()) in self.used:
            pass
        self.used.add(name)
        return name

    def make(self, kind: str) -> str:
        r, w = self.rng, self.word
        return self.unique(
            {
                "person": lambda: f"{w()} {w()}",
                "company": lambda: (
                    f"{w()} {w()} {r.choice(P.COMPANY)}" if r.random() < 0.15 else f"{w()} {r.choice(P.COMPANY)}"
                ),
                "product": lambda: (
                    f"{w()} {r.choice(P.PRODUCT)}"
                    + (f" {r.choice('ABCXZ')}{r.randint(1, 90)}" if r.random() < 0.25 else "")
                ),
                "place": lambda: f"{w()} {r.choice(P.PLACE)}",
                "event": lambda: f"{w()} {r.choice(P.EVENT)}",
                "software": lambda: r.choice(P.SOFTWARE_FORM).format(w=w()),
                "city": lambda: r.choice(P.CITY_FORM).format(w=w()),
            }[kind]
        )


YEARS = dict(person=(1920, 2002), company=(1850, 2022), product=(1985, 2025), place=(1780, 2020), software=(1995, 2025))


def article(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


class World:
    """Invented entities, their documents and a search engine."""

    SHARE = dict(company=0.19, person=0.23, product=0.18, place=0.14, event=0.09, software=0.1, city=0.07)

    def __init__(self, rng: random.Random, size: int, banned=frozenset(), english=0.15, rare=0.15):
        self.rng, self.names = rng, Names(rng, banned, english, rare)
        self.by_type = {t: [self.names.make(t) for _ in range(max(3, round(size * s)))] for t, s in self.SHARE.items()}
        self.extra_people = [self.names.make("person") for _ in range(size // 15)]
        self.extra_cities = [self.names.make("city") for _ in range(size // 20)]
        self.type_of = {n: t for t, ns in self.by_type.items() for n in ns}
        self.docs, self.facts, self.limit = [], {}, 3
        for name, kind in self.type_of.items():
            self.add_doc(name, kind)
        rng.shuffle(self.docs)
        self.build_index()

    def value(self, kind: str, fact: str) -> str:
        r = self.rng
        person = lambda: r.choice(
            self.by_type["person"] if r.random() < 0.85 else self.extra_people or self.by_type["person"]
        )
        city = lambda: r.choice(self.by_type["city"] if r.random() < 0.6 else self.extra_cities or self.by_type["city"])
        company = lambda: r.choice(self.by_type["company"])
        return {
            "founder": person,
            "architect": person,
            "maintainer": person,
            "mayor": person,
            "city": city,
            "maker": company,
            "organiser": company,
            "year": lambda: str(r.randint(*YEARS[kind])),
            "employees": lambda: str(r.randint(4, 9000)),
            "population": lambda: str(r.randint(8000, 990000)),
            "price": lambda: f"{r.randint(2, 40) if kind in ('place', 'event') else r.randint(10, 990)} euros",
            "weight": lambda: f"{r.randint(100, 9500)} grams",
            "job": lambda: article(r.choice(P.OCCUPATION)),
            "hours": lambda: (
                f"{r.randint(7, 12):02d}:{r.choice(('00', '15', '30', '45'))} "
                f"to {r.randint(15, 23)}:{r.choice(('00', '30'))}"
            ),
            "date": lambda: f"{r.randint(1, 28)} {r.choice(P.MONTH)}",
            "language": lambda: r.choice(P.LANGUAGE),
            "version": lambda: f"{r.randint(0, 12)}.{r.randint(0, 30)}.{r.randint(0, 9)}",
            "river": self.names.word,
        }[fact]()

    def add_doc(self, name: str, kind: str) -> None:
        r = self.rng
        facts = {f: self.value(kind, f) for (t, f) in P.RELATIONS if t == kind}
        shown = [f for f in facts if r.random() < 0.85] or list(facts)[:1]
        r.shuffle(shown)
        lines = [r.choice(P.INTRO[kind]).format(e=name, k=r.choice(P.KIND))] if r.random() < 0.7 else []
        lines += [r.choice(P.RELATIONS[kind, f]["s"]).format(e=name, v=facts[f]) for f in shown]
        self.facts[name] = {f: facts[f] for f in shown}
        self.docs.append({"title": name, "snippet": " ".join(lines)})

    def build_index(self) -> None:
        self.index = index_docs(self.docs)

    def search(self, query: str, shuffle=0.0, drop=0.0) -> list[dict]:
        hits = search(self.docs, self.index, query, self.limit + (drop > 0))
        if drop and hits and self.rng.random() < drop:
            hits = hits[1:]
        hits = hits[: self.limit]
        if self.rng.random() < shuffle:
            self.rng.shuffle(hits)
        return hits


def tokens(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def index_docs(docs: list[dict]) -> dict[str, list[tuple[int, float]]]:
    """Inverted index: token -> [(document, weight)]. A title word weighs four times a body word, rare words more."""
    weights: dict[str, dict[int, float]] = {}
    for i, d in enumerate(docs):
        for t in set(tokens(d["snippet"])):
            weights.setdefault(t, {})[i] = 1.0
        for t in set(tokens(d["title"])):
            weights.setdefault(t, {})[i] = 4.0
    n = len(docs)
    return {t: [(i, w * math.log(1 + n / len(ws))) for i, w in ws.items()] for t, ws in weights.items()}


def search(docs, index, query: str, k=3) -> list[dict]:
    score: dict[int, float] = {}
    for t in tokens(query):
        for i, w in index.get(t, ()):
            score[i] = score.get(i, 0.0) + w
    best = sorted(score, key=lambda i: (-score[i], i))[:k]
    return [docs[i] for i in best]


def search_result(hits: list[dict]) -> str:
    return json.dumps({"results": [{"title": h["title"], "snippet": h["snippet"]} for h in hits]}, ensure_ascii=False)


class TaskList:
    def __init__(self, tasks=(), next_id=1):
        self.tasks = [dict(t) for t in tasks]
        self.next_id = max([next_id] + [t["id"] + 1 for t in self.tasks])

    def act(self, action: str, title: str | None = None, id: int | None = None) -> str:
        """Run one call of manage_tasks. The reply always holds the whole list."""
        reply = {"ok": True}
        found = next((t for t in self.tasks if t["id"] == id), None)
        if action == "add":
            self.tasks.append({"id": self.next_id, "title": title, "done": False})
            reply["id"] = self.next_id
            self.next_id += 1
        elif action in ("complete", "remove") and found is None:
            reply = {"ok": False, "error": f"no task with id {id}"}
        elif action == "complete":
            found["done"] = True
        elif action == "remove":
            self.tasks.remove(found)
        elif action != "list":
            reply = {"ok": False, "error": f"unknown action {action}"}
        return json.dumps(reply | {"tasks": self.tasks}, ensure_ascii=False)
