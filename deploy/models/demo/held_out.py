"""The frozen corpus and the forty generated golden cases: a world and phrasings that training never uses."""

import random
import re

import phrases as P
from dialogues import Requests, random_tasks, request
from oracle import Oracle
from rules import with_rules
from world import TaskList, World

EVAL_SEED, EVAL_DOCS = 20261130, 300


def eval_world() -> World:
    return World(random.Random(EVAL_SEED), EVAL_DOCS, english=0.0, rare=0.03)


def invented_words(world: World) -> frozenset[str]:
    """Every invented word of the frozen corpus. Training names never use one of them."""
    common = set(P.COMPANY + P.PRODUCT + P.PLACE + P.EVENT + P.MONTH + P.LANGUAGE) | set(
        re.findall(r"[A-Z]\w*", " ".join(P.CITY_FORM + P.SOFTWARE_FORM))
    )
    names = (
        list(world.type_of)
        + world.extra_people
        + world.extra_cities
        + [f["river"] for f in world.facts.values() if "river" in f]
    )
    return frozenset(w for n in names for w in re.findall(r"[A-Z][a-z]{2,}", n) if w not in common)


MIX = dict(search_one=10, compare=4, two_hop=6, search_task=5, tasks=6, multi=4, direct=3, not_found=2)


def golden(world: World) -> list[dict]:
    """Forty cases with held-out names and held-out phrasings. The oracle supplies the expected calls and answer."""
    rng, cases, seen = random.Random(EVAL_SEED + 1), [], set()
    for category, n in MIX.items():
        kinds = ["add", "list", "by_id", "by_title", "by_title", "add"] if category == "tasks" else [category] * n
        for k in kinds:
            cases.append(case(world, rng, category, k, len(cases) + 1, seen))
    return cases


def case(world, rng, category, kind, number_, seen) -> dict:
    while True:
        req = Requests(world, rng, held=True)
        tasks = (
            TaskList()
            if category in ("search_one", "compare", "two_hop", "direct", "not_found")
            else TaskList(random_tasks(req, rng).tasks)
        )
        initial = [dict(t) for t in tasks.tasks]
        text, goals = request(req, tasks, kind)
        oracle = Oracle(world, tasks)
        answer = oracle.run(goals)
        failed = any(s in answer for s in ("not found", "does not exist", "list is empty"))
        if failed != (category == "not_found") or text in seen or (kind.startswith("by_") and not initial):
            continue
        signature = (
            (category, goals[0][3:5] if kind == "compare" else goals[0][2:4])
            if kind in ("search_one", "two_hop", "compare")
            else (category, answer)
        )
        if signature in seen:
            continue
        seen |= {text, signature}
        return with_rules(
            {
                "id": f"g{number_:02d}",
                "category": category,
                "query": text,
                "initial_tasks": initial,
                "expected_calls": [{"name": c["name"], "arguments": c["arguments"]} for c in oracle.calls],
                "reference_answer": answer,
                "final_tasks": tasks.tasks,
            }
        )
