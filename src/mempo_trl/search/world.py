"""An embedded world to train in without downloads: people who live in other cities in every episode.

A question asks where k people live, one search finds one of them, so the memory must carry the rest. Who lives where is
a hash of the episode and the name: nothing can be learned by heart, and every row is new to a policy that has not seen
its `question_id`. Everything is the same on every machine.
"""

import hashlib
import json
import random
from dataclasses import dataclass
from typing import Any

from .corpora import Passage
from .environment import SearchEnvironment
from .prompts import SEPARATOR, build_prompt
from .rows import Row

_PEOPLE = (
    "Adam Alma Anna Boris Carl Clara David Diana Elena Emil Erik Eva Felix Fiona Greta Hugo Ines Ivan Jana Julia Karl "
    "Lena Leo Lucia Marco Maria Mila Nina Noah Olga Omar Paul Petra Rosa Sara Simon Sofia Tom Vera Viktor"
)
_CITIES = (
    "Athens Berlin Bern Boston Cairo Delhi Dublin Geneva Hanoi Kyiv Lagos Lima London Madrid Milan Oslo Paris Porto "
    "Prague Riga Rome Seoul Tokyo Vienna"
)
PEOPLE, CITIES = tuple(_PEOPLE.split()), tuple(_CITIES.split())
MAX_OBJECTIVES = 10
UNKNOWN = "unknown"
QUESTION = "Where does each person live? "
FACT = "{person} lives in {city}."
SEARCH_ACTION = (
    "<think>\nI need to search for person {number}.\n</think>\n"
    '<tool_call>\n{{"name": "search", "arguments": {{"query": "{person}"}}}}\n</tool_call>'
)
ANSWER_ACTION = (
    "\n<think>\nI have sufficient information to provide the final answers.\n</think>\n<answer>\n{a}\n</answer>"
)


def _hash(*key: object) -> int:
    """64 bits that depend on the key alone. Python's own `hash` differs between processes."""
    return int.from_bytes(hashlib.blake2b(json.dumps(key).encode(), digest_size=8).digest(), "big")


def city_of(question_id: str, person: str) -> str:
    """Where `person` lives in the episode of this question."""
    return CITIES[_hash(question_id, person) % len(CITIES)]


def numbered(items: list[str]) -> str:
    """`["Anna", "Omar"]` as "1. Anna; 2. Omar": how questions and memories are written here."""
    return SEPARATOR.join(f"{number}. {item}" for number, item in enumerate(items, start=1))


def world_rows(count: int, objectives: int = 4, split: str = "train", seed: int = 0) -> list[Row]:
    """Questions of the world, in the form of a dataset's rows.

    Args:
        count: how many.
        objectives: people asked for in each question, k.
        split: rows of two splits have no episode in common.
        seed: rows of two seeds have no episode in common.

    Returns:
        Rows with `prompt`, `answers`, `question_id` and `people`, the names asked for.
    """
    if not 1 <= objectives <= MAX_OBJECTIVES:
        raise ValueError(f"objectives must be 1 to {MAX_OBJECTIVES}, got {objectives}")
    return [_row(f"{split}-{seed}-{objectives}-{number}", objectives) for number in range(count)]


def _row(question_id: str, objectives: int) -> Row:
    people = random.Random(_hash(question_id)).sample(PEOPLE, objectives)
    return {
        "prompt": build_prompt(QUESTION + numbered(people)),
        "answers": [city_of(question_id, person) for person in people],
        "question_id": question_id,
        "people": people,
    }


class WorldRetriever:
    """Finds the people whose names are in a query, in the world of one question; the other passages are distractors."""

    def __init__(self, question_id: str):
        self.question_id = question_id

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        """See `Retriever`."""
        return [self._search(query, k) for query in queries]

    def _search(self, query: str, k: int) -> list[Passage]:
        words = query.replace(",", " ").split()
        asked = [person for person in PEOPLE if person in words]
        others = [person for person in PEOPLE if person not in asked]
        random.Random(_hash(self.question_id, query)).shuffle(others)
        return [self._passage(person, float(person in asked)) for person in (asked + others)[:k]]

    def _passage(self, person: str, score: float) -> Passage:
        text = FACT.format(person=person, city=city_of(self.question_id, person))
        return Passage(id=person, title="", text=text, score=score)


class WorldEnvironment(SearchEnvironment):
    """`SearchEnvironment` over the passages of the row's own episode. The class is the `environment_factory`."""

    def __init__(self) -> None:
        super().__init__(WorldRetriever(""), top_k=2)

    def reset(self, **row: Any) -> None:
        super().reset(**row)
        self._retriever = WorldRetriever(row.get("question_id", ""))


@dataclass(frozen=True)
class Expert:
    """Who writes the traces of the cold start: good at searching, careless with its memory.

    Attributes:
        forget_often: rate at which a city of the first half of `CITIES` is written down as unknown.
        forget_rarely: the same for the second half.
        misread: rate at which the city of a distractor is written down.
        look_back: rate at which an answer that the memory does not hold is read off the history, if that is visible.
    """

    forget_often: float = 0.5
    forget_rarely: float = 0.1
    misread: float = 0.06
    look_back: float = 0.5

    def trace(self, row: Row, context: str = "memory") -> list[dict[str, Any]]:
        """Plays the episode of `row`: one search a turn, then the answer, which guesses what the expert does not know.

        Args:
            row: a row of `world_rows`.
            context: "memory", or "full": the history is visible when the answer is given.

        Returns:
            The assistant's and the tool's messages in turn; an assistant message's `content` is its whole text.
        """
        rng = random.Random(_hash("expert", row["question_id"]))
        environment = WorldEnvironment()
        messages: list[dict[str, Any]] = []
        memory: list[str] = []
        environment.reset(**row)
        for number, (person, city) in enumerate(zip(row["people"], row["answers"], strict=True), start=1):
            turn = memory_block(memory) + SEARCH_ACTION.format(number=number, person=person)
            messages.append({"role": "assistant", "content": turn})
            result = environment.search(person)
            messages.append({"role": "tool", "name": "search", "content": result})
            memory = [*memory, self._note(city, result, rng)]
        look_back = self.look_back if context == "full" else 0.0
        answers = [
            note if note != UNKNOWN else city if rng.random() < look_back else rng.choice(CITIES)
            for note, city in zip(memory, row["answers"], strict=True)
        ]
        turn = memory_block(memory) + ANSWER_ACTION.format(a=SEPARATOR.join(answers))
        return [*messages, {"role": "assistant", "content": turn}]

    def _note(self, city: str, result: str, rng: random.Random) -> str:
        often = CITIES.index(city) < len(CITIES) // 2
        chance, forget = rng.random(), self.forget_often if often else self.forget_rarely
        if chance < forget:
            return UNKNOWN
        read_wrongly = chance < forget + self.misread
        return result.rstrip(".").split()[-1] if read_wrongly else city


def memory_block(notes: list[str]) -> str:
    """The memory that holds `notes`; no text where there are none, as in the first turn."""
    return f"<mem>{numbered(notes)}</mem>" if notes else ""
