"""What runs of `ablations.py` add to the embedded world: a tool that misleads, and a close look at memories."""

import itertools
import random
from statistics import fmean
from typing import Any

from mempo_trl.tasks.search import Passage
from mempo_trl.tasks.world.world import BOLD, CITIES, FRIEND, PEOPLE, WorldEnvironment, WorldRetriever
from mempo_trl.traces.file import Trace
from mempo_trl.types import Episode

HABITS = ("copies", "guesses", "repeats", "grows")


class NoisyRetriever:
    """Half of the misleading searches find the right person in another world, the other half find only other people."""

    def __init__(self, question_id: str, rate: float, rng: random.Random):
        self._true, self._false = WorldRetriever(question_id), WorldRetriever(question_id + " misled")
        self._rate, self._rng = rate, rng

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        return [self._search(query, k) for query in queries]

    def _search(self, query: str, k: int) -> list[Passage]:
        chance = self._rng.random()
        if chance >= self._rate:
            (found,) = self._true.search([query], k)
            return found
        if chance < self._rate / 2:
            (found,) = self._false.search([query], k)
            return found
        (found,) = self._true.search([query], k + 1)
        return found[1:]


class NoisyEnvironment(WorldEnvironment):
    """The world with a retriever that misleads at a rate, at random: the same query can be answered rightly later."""

    _made = itertools.count()

    def __init__(self, rate: float) -> None:
        self._rate, self._rng = rate, random.Random(next(self._made))
        super().__init__()

    def reset(self, **row: Any) -> None:
        super().reset(**row)
        self._retriever = NoisyRetriever(row.get("question_id", ""), self._rate, self._rng)


def memory_habits(row: dict[str, Any], episode: Episode) -> dict[str, float] | None:
    """Shares of the memories of an episode that show a bad habit; None without a memory.

    copies: it names a person of the question whom no search has found. guesses: it holds a city that no search has
    shown. repeats: it has a person twice who was searched for once. grows: it has more notes than there were searches.
    """
    results = [m["content"] for m in episode.messages if m["role"] == "tool"]
    seen = [(memory, results[:turn]) for turn, memory in enumerate(episode.memories) if turn and memory is not None]
    if not seen:
        return None
    named = [who.removesuffix(FRIEND) for who in row["people"]]
    habits = [_habits(memory, " ".join(found), len(found), named) for memory, found in seen]
    return {habit: fmean(h[habit] for h in habits) for habit in HABITS}


def _habits(memory: str, found: str, searches: int, named: list[str]) -> dict[str, bool]:
    return {
        "copies": any(person in memory and BOLD.format(person) not in found for person in named),
        "guesses": any(city in memory and city not in found for city in CITIES),
        "repeats": any(memory.count(f" {p}") > max(1, found.count(BOLD.format(p))) for p in PEOPLE),
        "grows": memory.count(";") + 1 > searches,
    }


def examples(trace: Trace) -> list[dict[str, Any]]:
    """Each scored memory of a trace: what it was written from, and the answer's tokens in both contexts."""
    found = []
    for number, turn in enumerate(trace["turns"]):
        if turn["answer_logps_mem"] is None or turn["answer_logps_baseline"] is None:
            continue
        before = [result for earlier in trace["turns"][:number] for result in earlier["tool_results"]]
        tokens = zip(
            *(trace["answer_tokens"], trace["answer_mask"], turn["answer_logps_mem"], turn["answer_logps_baseline"]),
            strict=True,
        )
        counted = [(text, round(mem, 4), round(full, 4)) for text, counts, mem, full in tokens if counts]
        found.append(
            {
                "step": trace["step"],
                "question": trace["question"],
                "answers": trace["answers"],
                "tool_results": before,
                "memory": turn["memory_text"],
                "tokens": counted,  # (text, log p given the memory, log p given the history)
            }
        )
    return found


def lost(example: dict[str, Any]) -> float:
    """Answer tokens that were likely given the history and are not given the memory; the fewest turns break ties."""
    known = [(mem, full) for _, mem, full in example["tokens"] if full > -0.3]
    return sum(mem < -1.5 for mem, _ in known) + 0.5 * sum(mem > -0.3 for mem, _ in known)
