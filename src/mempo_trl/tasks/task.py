"""Questions and retrievers named by a short text, as command lines do."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from .search.corpora import load_corpus
from .search.data import compose_objectives, load_fanoutqa, load_hotpotqa, load_questions
from .search.environment import SearchEnvironment
from .search.remote import HTTPRetriever
from .search.retrieval import BM25Retriever, Retriever
from .search.rows import Row
from .world.world import WorldEnvironment, world_rows

WORLD = "world"
FANOUTQA = "fanoutqa"


@dataclass(frozen=True)
class Task:
    """Questions and what they are searched in.

    Attributes:
        environment_factory: makes an environment for one episode.
        draw: the rows for a number of objectives (None: as they come), a count (None: all) and a seed.
    """

    environment_factory: Callable[[], SearchEnvironment]
    draw: Callable[[int | None, int | None, int], list[Row]]

    def rows(self, objectives: int | None = None, count: int | None = None, seed: int = 0) -> list[Row]:
        """Questions in an order that `seed` shuffles.

        Args:
            objectives: questions of one objective are joined into such of this many. None: they are as they come.
            count: at most so many.
            seed: of the order, and of what is joined with what.

        Raises:
            `ValueError`: no question has so many objectives.
        """
        return self.draw(objectives, count, seed)


def open_task(questions: str, corpus: str | None = None, top_k: int = 3) -> Task:
    """Opens a question set.

    Args:
        questions: `world` (the embedded one), `fanoutqa` (needs the package), a HotpotQA file (`.json`) or a question
            file (`.jsonl`, see `load_questions`).
        corpus: see `open_retriever`. The embedded world has its own; FanOutQA and HotpotQA bring one along.
        top_k: passages for each search.

    Raises:
        `ValueError`: the name is unknown, or the questions need a corpus.
    """
    if questions == WORLD:
        return Task(WorldEnvironment, _world_rows)
    path = Path(questions)
    if questions != FANOUTQA and path.suffix not in (".json", ".jsonl"):
        raise ValueError(
            f"questions {questions!r} are unknown. Give {WORLD}, {FANOUTQA}, a HotpotQA file (.json) or a question "
            "file (.jsonl)"
        )
    if path.suffix == ".jsonl":
        if corpus is None:
            raise ValueError(f"{questions} has no corpus of its own. Name one with --corpus")
        rows, passages = list(load_questions(path)), []
    else:
        found = load_fanoutqa() if questions == FANOUTQA else load_hotpotqa(path)
        rows, passages = list(found.questions), found.corpus
    retriever = open_retriever(corpus) if corpus is not None else BM25Retriever.build(passages)
    return Task(partial(SearchEnvironment, retriever, top_k=top_k), partial(_draw, rows))


def open_retriever(source: str) -> Retriever:
    """Opens what is searched.

    Args:
        source: the URL of a search server, a folder that `mempo index` wrote, or a corpus (see `load_corpus`), which is
            indexed in memory.

    Raises:
        `ValueError`: the corpus is empty, or of an unknown format.
        `FileNotFoundError`: there is no such file or index.
    """
    if source.startswith(("http://", "https://")):
        return HTTPRetriever(source)
    if Path(source).is_dir():
        return BM25Retriever.load(source)
    return BM25Retriever.build(load_corpus(source))


def _world_rows(objectives: int | None, count: int | None, seed: int) -> list[Row]:
    return world_rows(100 if count is None else count, objectives or 4, split="test", seed=seed)


def _draw(rows: list[Row], objectives: int | None, count: int | None, seed: int) -> list[Row]:
    if objectives is None:
        drawn = rows.copy()
        Random(seed).shuffle(drawn)
        return drawn[:count]
    drawn = [row for row in rows if len(row["answers"]) == objectives]
    if objectives == 1 or drawn:
        Random(seed).shuffle(drawn)
    else:
        drawn = _composed([row for row in rows if len(row["answers"]) == 1], objectives, seed)
    if not drawn:
        raise ValueError(f"no question has {objectives} objectives, and too few have one to be joined")
    return drawn[:count]


def _composed(singles: list[Row], objectives: int, seed: int) -> list[Row]:
    from datasets import Dataset

    if len(singles) < objectives:
        return []
    return list(compose_objectives(Dataset.from_list(singles), objectives, seed))
