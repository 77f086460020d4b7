"""Search of the frozen corpus; of the live web (Tavily) only for a task that is not measured.

A measured task always searches the frozen corpus, whatever the environment says: the web changes between two runs, and
its latency would be measured with the model's. Live results are cut to the same shape and waited for ten seconds.
"""

import json
import os
import urllib.request
from typing import Annotated, Any

from tasks.agent.desk import RESULTS, Desk, best

TAVILY_URL = "https://api.tavily.com/search"
TIMEOUT_S = 10
SNIPPET_CHARS = 600

EXAMPLES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"query": "Lontbree"},
        {
            "results": [
                {
                    "title": "Lontbree Router",
                    "snippet": "Lontbree Router is a product for the home. Lontbree Router was released in 1999. On "
                    "the scale it shows 9321 grams. Shops ask 578 euros for it. The maker is Frortdo Press.",
                }
            ]
        },
    ),
    ({"query": "zzzz"}, {"results": []}),
]


def web_search(
    query: Annotated[str, "Full name of the thing, then a keyword, for example the word founder or price."],
    *,
    desk: Desk,
) -> str:
    """
    Search the web for a fact. Returns up to three results, best first. Each result has a title and a short snippet.
    """
    key = os.environ.get("TAVILY_API_KEY")
    hits = _live(query, key) if key and not desk.measured else best(desk.index, query)
    return json.dumps({"results": hits}, ensure_ascii=False)


def _live(query: str, key: str) -> list[dict[str, str]]:
    """Ask Tavily. Raises OSError (unreachable, refused, too slow) and ValueError (not JSON)."""
    body = json.dumps({"query": query, "max_results": RESULTS, "search_depth": "basic"}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(TAVILY_URL, data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        found = json.load(answer).get("results") or []
    return [{"title": str(r.get("title")), "snippet": str(r.get("content"))[:SNIPPET_CHARS]} for r in found[:RESULTS]]
