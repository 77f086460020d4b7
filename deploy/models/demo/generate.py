"""Command line of the demo model's data.

python generate.py data --out DIR        corpus.jsonl and the generated cases.jsonl of golden_set/v1
python generate.py tokenizer --out DIR   tokenizer.json and its configuration
python generate.py check                 no held-out name or question in a sample of the training stream
python generate.py show [--seed N]       print one training dialogue
"""

import argparse
import json
import random
import re
from pathlib import Path

from dialogues import dialogue
from held_out import eval_world, golden, invented_words
from rendering import CHAT_TEMPLATE, HERE, SYSTEM, TOOLS, render_system, segments
from world import WORDS, World, tokens

CASES = HERE.parents[2] / "golden_set" / "v1" / "cases.jsonl"


SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
# A capitalised word never carries its leading space: a name has the same tokens after a space, a quote or a bracket.
SPLIT = r"\p{Lu}\p{Ll}*| ?\p{Ll}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+|\p{L}"


def train_tokenizer(out: Path, vocab=4096, dialogues=6000) -> None:
    from pydoc_data import topics

    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    rng, banned = random.Random(7), invented_words(eval_world())

    def texts():
        yield from topics.topics.values()
        yield from [render_system(SYSTEM, TOOLS)] * 40
        yield from [" ".join(rng.sample(WORDS, 400)) for _ in range(100)]
        for _ in range(dialogues // 40):
            world = World(rng, 120, banned)
            for _ in range(40):
                yield "".join(t for t, _ in segments(dialogue(world, rng)))

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        texts(),
        trainers.BpeTrainer(
            vocab_size=vocab - len(TAGS),
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tok.add_tokens([AddedToken(t, special=False, normalized=False) for t in TAGS])
    out.mkdir(parents=True, exist_ok=True)
    tok.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 4096,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


# ---- command line ----------------------------------------------------------------------------------------------------
def write_jsonl(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows))


def ngrams(text: str, n: int) -> set[tuple]:
    t = tokens(text)
    return {tuple(t[i : i + n]) for i in range(len(t) - n + 1)}


def check(dialogues=20000) -> None:
    """Compare the golden set with a fresh sample of the training stream."""
    cases = [json.loads(line) for line in CASES.read_text().splitlines()]
    banned, rng = invented_words(eval_world()), random.Random(99)
    users, words, grams = set(), set(), set()
    for _ in range(dialogues // 40):
        world = World(rng, 120, banned)
        words |= {w for n in world.names.used for w in re.findall(r"[A-Z][a-z]+", n)}
        for _ in range(40):
            for m in dialogue(world, rng):
                if m["role"] == "user":
                    users.add(m["content"].rstrip(".?!"))
                    grams |= ngrams(m["content"], 8)
    print("training requests sampled", len(users), "invented words banned", len(banned))
    print("banned words seen in training names:", len(words & banned))
    print("golden queries seen verbatim:", [c["id"] for c in cases if c["query"].rstrip(".?!") in users])
    print("golden queries that share an 8-word run:", [c["id"] for c in cases if ngrams(c["query"], 8) & grams])


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", choices=["data", "tokenizer", "check", "show"])
    ap.add_argument("--out", type=Path, help="folder for what data and tokenizer write")
    ap.add_argument("--seed", type=int, default=0)
    a = ap.parse_args()
    if a.what in ("data", "tokenizer"):
        if a.out is None:
            ap.error(f"{a.what} needs --out")
        a.out.mkdir(parents=True, exist_ok=True)
    if a.what == "data":
        world = eval_world()
        cases = golden(world)
        write_jsonl(a.out / "corpus.jsonl", world.docs)
        write_jsonl(a.out / "cases.jsonl", cases)
        print(len(world.docs), "documents,", len(cases), "cases")
    elif a.what == "tokenizer":
        train_tokenizer(a.out)
    elif a.what == "check":
        check()
    else:
        rng = random.Random(a.seed)
        print("".join(t for t, _ in segments(dialogue(World(rng, 100), rng))))


if __name__ == "__main__":
    main()
