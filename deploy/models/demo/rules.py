"""From the oracle's play of a case to rules that any model's play can keep; tasks/agent/rule.py says how they are read.

A query must hold the name and one of the words by which people ask for the fact; the words must not fit another fact of
the same kind of thing. An answer must hold the values, in the ways they are written; a title its words.
"""

import re

# search keyword -> words by which people ask for that fact; a trailing * stands for any ending
FACT_WORDS = {
    "founder": ["founder*", "founded by", "who founded", "started by", "who started", "set up by", "established by"],
    "founding year": [
        "year",
        "founded",
        "founding",
        "foundation",
        "established",
        "start",
        "started",
        "when",
        "age",
        "date",
    ],
    "headquarters": ["headquarter*", "head office", "home city", "city", "location", "located", "based", "where"],
    "employees": ["employ*", "staff", "people", "workers", "workforce", "headcount", "size"],
    "maker": ["maker*", "make", "makes", "made", "manufactur*", "produced by", "producer*", "company", "firm", "brand"],
    "price": ["price*", "cost*", "expensive", "how much"],
    "release year": ["year", "release*", "came out", "come out", "launch*", "when"],
    "birthplace": ["birthplace", "place of birth", "city", "where", "born", "from", "hometown"],
    "birth year": ["birth year", "year", "born", "when", "date of birth", "birth date", "birthday", "age"],
    "opening hours": ["hours", "open", "opens", "opening times", "times", "schedule"],
    "ticket price": ["price*", "cost*", "ticket*", "entry", "entrance", "admission", "fee*", "how much"],
    "opening year": ["year", "opened", "when", "built", "founded", "established", "age", "date"],
    "architect": ["architect*", "designed", "designer*", "plans", "who drew"],
    "date": ["date*", "when", "day", "starts", "month"],
    "organiser": ["organis*", "organiz*", "runs", "run by", "host*", "company", "firm"],
    "maintainer": ["maintain*", "looks after", "author*", "lead developer"],
    "latest version": ["version*", "latest release", "newest release", "current release"],
    "population": ["population*", "people", "inhabitants", "residents", "how many", "how large", "size"],
    "mayor": ["mayor*"],
    "river": ["river*"],
}
OLDER = {
    "older": (["older", "oldest", "earlier", "first"], ["newer", "newest", "younger", "later"]),
    "newer": (["newer", "newest", "later", "more recent*"], ["older", "oldest", "earlier"]),
    "larger": (["larger", "largest", "bigger", "biggest", "more populous"], ["smaller", "smallest"]),
}
NOT_FOUND = [
    "not found",
    "not find",
    "not be found",
    "couldn t find",
    "can t find",
    "unable to",
    "not able to",
    "no information",
]
NOT_FOUND += [
    "no result",
    "no results",
    "no data",
    "not available",
    "not listed",
    "not mention*",
    "not stated",
    "not say",
]
NOT_FOUND += [
    "not contain",
    "not hold",
    "not provide",
    "not include",
    "not specify",
    "doesn t contain",
    "doesn t say",
    "unknown",
]
DIRECT = {
    "I can not do that": [
        "can not",
        "cannot",
        "can t",
        "unable",
        "not able",
        "only search",
        "no tool",
        "don t have",
        "sorry",
    ],
    "Goodbye": ["goodbye", "good bye", "bye", "see you", "farewell", "take care", "have a great", "have a good"],
    "Hello": ["hello", "hi", "good afternoon", "welcome", "greetings", "how can i", "how may i", "what do you need"],
}
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
SMALL_WORDS = {"the", "a", "an", "at", "on", "for", "in", "to", "with", "some"}


def with_rules(case: dict) -> dict:
    """The case as it stands in golden_set/: reference arguments, and rules for whatever may be worded otherwise."""
    calls = [call_rules(call) for call in case["expected_calls"]]
    known = {task["id"] for task in case["initial_tasks"]}
    tasks = [t if t["id"] in known else t | {"title": title_rule(t["title"])} for t in case["final_tasks"]]
    free = {"order": "free"} if case["category"] == "compare" else {}
    extra = {"extra_calls": False} if case["category"] == "direct" else {}
    return {
        **{key: case[key] for key in ("id", "category", "query", "initial_tasks")},
        "expected_calls": calls,
        **free,
        **extra,
        "answer": answer_rule(case),
        "reference_answer": case["reference_answer"],
        "final_tasks": tasks,
    }


def call_rules(call: dict) -> dict:
    arguments = call["arguments"]
    if "query" in arguments:
        name, keyword = split_query(arguments["query"])
        return call | {"rules": {"query": {"all_of": [name], "any_of": FACT_WORDS[keyword]}}}
    return call | ({"rules": {"title": title_rule(arguments["title"])}} if "title" in arguments else {})


def split_query(query: str) -> tuple[str, str]:
    """The oracle's query is a name, then a keyword; the longest keyword that fits is the one."""
    keyword = max((k for k in FACT_WORDS if query.endswith(f" {k}")), key=len)
    return query.removesuffix(f" {keyword}"), keyword


def title_rule(title: str) -> dict:
    """The first verb, every name whole, and every other word that carries meaning. A price may be left out."""
    title = re.sub(r" for \d+ euros$", "", title)
    parts = re.findall(r"(?:[A-Z][A-Za-z]*)(?: [A-Z][A-Za-z]*)*|\d+:\d+|[a-z]+", title)
    return {"all_of": [part for part in parts if part not in SMALL_WORDS]}


def answer_rule(case: dict) -> dict:
    answer, category, calls = case["reference_answer"], case["category"], case["expected_calls"]
    if category == "not_found":
        return {"any_of": NOT_FOUND}
    if category == "direct":
        return {"any_of": next(words for start, words in DIRECT.items() if answer.startswith(start))}
    if category == "compare":
        return comparison(case)
    if category in ("search_one", "two_hop", "search_task"):
        name = [] if category == "two_hop" else [split_query(calls[0]["arguments"]["query"])[0]]
        return {"all_of": [*(name if category == "search_one" else []), *value_rule(answer)]}
    return task_answer(case)


def comparison(case: dict) -> dict:
    """Both values, and the right one called older, newer or larger."""
    one, adjective = re.search(r", so (.+) is (\w+)\.$", case["reference_answer"]).groups()
    names = [split_query(call["arguments"]["query"])[0] for call in case["expected_calls"]]
    other = next(name for name in names if name != one)
    values = re.search(r"It is (\d+) for .+ and (\d+) for ", case["reference_answer"]).groups()
    adjectives, opposites = OLDER[adjective]
    choice = {"one": one, "other": other, "adjectives": adjectives, "opposites": opposites}
    return {"all_of": sorted(values), "chooses": choice}


def value_rule(answer: str) -> list:
    """The value of the first sentence "The FACT of NAME is VALUE.", in the ways people write it."""
    value = re.match(r"The .+? of .+? (?:is|are) (.+?)\.(?= |$)", answer).group(1)
    if date := re.fullmatch(rf"(\d+) ({MONTHS})", value):
        day, month = date.groups()
        ends = {"1": "st", "2": "nd", "3": "rd"}
        nth = day + ("th" if day in ("11", "12", "13") else ends.get(day[-1], "th"))
        return [[f"{day} {month}", f"{month} {day}", f"{nth} {month}", f"{nth} of {month}", f"{month} {nth}"]]
    if hours := re.fullmatch(r"(\d+):(\d+) to (\d+):(\d+)", value):
        return [clock(*hours.group(1, 2)), clock(*hours.group(3, 4))]
    if price := re.fullmatch(r"(\d+) euros", value):
        return [[f"{price[1]} eur*", f"eur* {price[1]}"]]
    return [value]


def clock(hour: str, minute: str) -> list[str]:
    """08:30 is also 8:30, 20:30 also 8:30 pm."""
    h = int(hour)
    forms = [f"{hour}:{minute}", f"{h}:{minute}"] if h < 13 else [f"{hour}:{minute}", f"{h - 12}:{minute} pm"]
    return sorted(set(forms))


def task_answer(case: dict) -> dict:
    """The final list proves what was done; the answer must own up to it."""
    last = case["expected_calls"][-1]["arguments"]
    if last["action"] == "list":
        return {"all_of": [task["title"] for task in case["final_tasks"]]}
    done = {
        "add": ["add*", "creat*", "noted", "made", "put", "saved", "new task", "on your list", "on the list", "done"],
        "complete": ["done", "complete*", "finished", "marked"],
        "remove": ["remove*", "delete*", "gone", "dropped"],
    }
    return {"any_of": done[last["action"]], "none_of": ["does not exist", "not found", "error"]}
