"""An embedded world to train in without downloads: people with other homes and other friends in every episode.

A question asks where k people live. Some of them are named, others are the friend of somebody who is named, which takes
two searches. A search finds one passage with facts on several people, so a memory must carry what was found before. Who
lives where is a hash of the episode and the name: nothing can be learned by heart, and every row is new to a policy
that has not seen its `question_id`. Everything is the same on every machine.
"""

import hashlib
import json
import random
import re
from dataclasses import dataclass
from typing import Any

from ..search.corpora import Passage
from ..search.environment import SearchEnvironment
from ..search.prompts import SEPARATOR, build_prompt
from ..search.rows import Row

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
FRIEND = "'s friend"
FACT = "{person} lives in {city} and is friends with {friend}."
BOLD = "**{}**"  # the name that was searched for, as search engines show it
NOTE = "{person}: {city}"
PEOPLE_IN_A_PASSAGE = 3
TWO_HOP_RATE = 0.5
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


def friend_of(question_id: str, person: str) -> str:
    """The friend whom a passage of this question's episode names for `person`."""
    others = [other for other in PEOPLE if other != person]
    return others[_hash("friend", question_id, person) % len(others)]


def numbered(items: list[str]) -> str:
    """`["Anna", "Omar's friend"]` as "1. Anna; 2. Omar's friend": how questions and memories are written here."""
    return SEPARATOR.join(f"{number}. {item}" for number, item in enumerate(items, start=1))


def world_rows(count: int, objectives: int = 4, split: str = "train", seed: int = 0) -> list[Row]:
    """Questions of the world, in the form of a dataset's rows.

    Args:
        count: how many.
        objectives: people asked for in each question, k.
        split: rows of two splits have no episode in common.
        seed: rows of two seeds have no episode in common.

    Returns:
        Rows with `prompt`, `answers`, `question_id` and `people`, who is asked for: "Anna", or "Anna's friend".
    """
    if not 1 <= objectives <= MAX_OBJECTIVES:
        raise ValueError(f"objectives must be 1 to {MAX_OBJECTIVES}, got {objectives}")
    return [_row(f"{split}-{seed}-{objectives}-{number}", objectives) for number in range(count)]


def _row(question_id: str, objectives: int) -> Row:
    rng = random.Random(_hash(question_id))
    people = [person + FRIEND * (rng.random() < TWO_HOP_RATE) for person in rng.sample(PEOPLE, objectives)]
    return {
        "prompt": build_prompt(QUESTION + numbered(people)),
        "answers": [city_of(question_id, searches(question_id, who)[-1]) for who in people],
        "question_id": question_id,
        "people": people,
    }


def searches(question_id: str, who: str) -> list[str]:
    """The names to search for, one after the other, to find where `who` lives."""
    person = who.removesuffix(FRIEND)
    return [person] if person == who else [person, friend_of(question_id, person)]


class WorldRetriever:
    """Finds the passage on the first person named in a query, in the world of one question; then the other passages.

    Each passage has facts on `PEOPLE_IN_A_PASSAGE` people, the last on whoever is left over, in an order that says
    nothing. The name that was asked for is in bold.
    """

    def __init__(self, question_id: str):
        self.question_id = question_id
        people = list(PEOPLE)
        random.Random(_hash("passages", question_id)).shuffle(people)
        self._groups = [people[i : i + PEOPLE_IN_A_PASSAGE] for i in range(0, len(people), PEOPLE_IN_A_PASSAGE)]

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        """See `Retriever`."""
        return [self._search(query, k) for query in queries]

    def _search(self, query: str, k: int) -> list[Passage]:
        asked = next((word for word in re.findall(r"\w+", query) if word in PEOPLE), None)
        others = [group for group in self._groups if asked not in group]
        random.Random(_hash(self.question_id, query)).shuffle(others)
        found = [group for group in self._groups if asked in group]
        return [self._passage(group, asked) for group in (found + others)[:k]]

    def _passage(self, people: list[str], asked: str | None) -> Passage:
        facts = [
            FACT.format(
                person=BOLD.format(person) if person == asked else person,
                city=city_of(self.question_id, person),
                friend=friend_of(self.question_id, person),
            )
            for person in people
        ]
        return Passage(id="-".join(people), title="", text=" ".join(facts), score=float(asked in people))


class WorldEnvironment(SearchEnvironment):
    """`SearchEnvironment` over the passages of the row's own episode. The class is the `environment_factory`."""

    def __init__(self) -> None:
        super().__init__(WorldRetriever(""), top_k=1)

    def reset(self, **row: Any) -> None:
        super().reset(**row)
        self._retriever = WorldRetriever(row.get("question_id", ""))


@dataclass(frozen=True)
class Expert:
    """Who writes the traces of the cold start: good at searching, careless with its memory.

    Attributes:
        forget_often: rate at which a city of the first half of `CITIES` is written down as unknown.
        forget_rarely: the same for the second half.
        misread: rate at which the city of somebody else in the passage is written down.
        look_back: rate at which an answer that the memory does not hold is read off the history, if that is visible.
    """

    forget_often: float = 0.5
    forget_rarely: float = 0.1
    misread: float = 0.06
    look_back: float = 0.5

    def trace(self, row: Row, context: str = "memory") -> list[dict[str, Any]]:
        """Plays the episode of `row`: one search a turn, then the answer, which guesses what the expert does not know.

        A memory has a note for each person found, "Anna: Lima". A friend whose home is still to be searched for stands
        at its end as a name alone.

        Args:
            row: a row of `world_rows`.
            context: "memory", or "full": the history is visible when the answer is given.

        Returns:
            The assistant's and the tool's messages in turn; an assistant message's `content` is its whole text.

        Raises:
            `ValueError`: the context is unknown.
        """
        if context not in ("full", "memory"):
            raise ValueError(f'context must be "full" or "memory", got {context!r}')
        rng = random.Random(_hash("expert", row["question_id"]))
        environment = WorldEnvironment()
        messages: list[dict[str, Any]] = []
        memory: list[str] = []
        known: list[str] = []
        environment.reset(**row)
        for number, (who, city) in enumerate(zip(row["people"], row["answers"], strict=True), start=1):
            path = searches(row["question_id"], who)
            for hop, person in enumerate(path):
                turn = memory_block(memory + path[1:] * hop) + SEARCH_ACTION.format(number=number, person=person)
                messages.append({"role": "assistant", "content": turn})
                result = environment.search(person)
                messages.append({"role": "tool", "name": "search", "content": result})
            known.append(self._note(city, result, rng))
            memory.append(NOTE.format(person=person, city=known[-1]))
        look_back = self.look_back if context == "full" else 0.0
        answers = [
            note if note != UNKNOWN else city if rng.random() < look_back else rng.choice(CITIES)
            for note, city in zip(known, row["answers"], strict=True)
        ]
        turn = memory_block(memory) + ANSWER_ACTION.format(a=SEPARATOR.join(answers))
        return [*messages, {"role": "assistant", "content": turn}]

    def _note(self, city: str, result: str, rng: random.Random) -> str:
        often = CITIES.index(city) < len(CITIES) // 2
        chance, forget = rng.random(), self.forget_often if often else self.forget_rarely
        if chance < forget:
            return UNKNOWN
        others = [other for other in CITIES if other in result and other != city]
        return rng.choice(others or [city]) if chance < forget + self.misread else city


# An expert that forgets nothing and misreads nothing.
CAREFUL = Expert(forget_often=0.0, forget_rarely=0.0, misread=0.0)


def memory_block(notes: list[str]) -> str:
    """The memory that holds `notes`; no text where there are none, as in the first turn."""
    return f"<mem>{numbered(notes)}</mem>" if notes else ""
