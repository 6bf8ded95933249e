"""Questions, tools and rewards that are named by a short text, as command lines and YAML files do."""

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from ..rows import check_row
from .outcome import has_reward
from .search.corpora import Passage, load_corpus
from .search.data import compose_objectives, load_question_set
from .search.environment import SearchEnvironment
from .search.fanoutqa import load_fanoutqa
from .search.remote import HTTPRetriever
from .search.retrieval import BM25Retriever, Retriever
from .search.rewards import mempo_outcome_reward
from .search.rows import Row
from .world.world import WorldEnvironment, world_rows

WORLD = "world"
FANOUTQA = "fanoutqa"


@dataclass(frozen=True)
class Task:
    """Questions and the tools to answer them with.

    Attributes:
        environment_factory: makes the environment of one episode, whose methods are the tools.
        draw: the rows for a number of objectives (None: as they are), a count (None: all) and a seed.
    """

    environment_factory: Callable[[], Any]
    draw: Callable[[int | None, int | None, int], list[Row]]

    def rows(self, objectives: int | None = None, count: int | None = None, seed: int = 0) -> list[Row]:
        """Questions in an order that `seed` shuffles.

        Args:
            objectives: questions of one objective are joined into questions of this many. None leaves them as they are.
            count: at most so many.
            seed: of the order, and of what is joined with what.

        Raises:
            `ValueError`: no question has so many objectives.
        """
        return self.draw(objectives, count, seed)


def is_dataset(name: str) -> bool:
    """Whether a text names a dataset, as for `open_task`, and is not itself a question."""
    own = re.fullmatch(r"[\w.]+:\w+", name) is not None
    return name in (WORLD, FANOUTQA) or own or _is_file(name)


def open_task(
    dataset: str, corpus: str | None = None, top_k: int = 3, environment_factory: Callable[[], Any] | None = None
) -> Task:
    """Opens a question set with its tools.

    Args:
        dataset: `world` (the embedded one), `fanoutqa` (needs the package), a question file (see `load_questions`), or
            the import path `module:name` of a function without arguments that returns rows, as a list or a dataset.
        corpus: see `open_retriever`. The embedded world has its own; FanOutQA and files with paragraphs (HotpotQA,
            2WikiMultihopQA, MuSiQue) bring one along.
        top_k: passages for each search.
        environment_factory: tools of another kind, in place of search.

    Raises:
        `ValueError`: the name is unknown, or the questions need a corpus, or have one without a use for it.
    """
    if environment_factory is not None and corpus is not None:
        raise ValueError(f"an environment_factory has its own tools: the corpus {corpus} is not used. Leave one out")
    if dataset == WORLD:
        return Task(environment_factory or WorldEnvironment, _world_rows)
    if not is_dataset(dataset):
        raise ValueError(
            f"the dataset {dataset!r} is unknown: no such file. Give {WORLD}, {FANOUTQA}, a question file, or the "
            "import path (module:name) of a function that returns rows"
        )
    own = not _is_file(dataset) and dataset != FANOUTQA
    rows, passages = (_own_rows(dataset), []) if own else _read_questions(dataset)
    if corpus is None and environment_factory is None and not passages:
        raise ValueError(f"{dataset} comes without a corpus. Set --corpus, or an environment_factory")
    if environment_factory is None:
        retriever = open_retriever(corpus) if corpus is not None else BM25Retriever.build(passages)
        environment_factory = partial(SearchEnvironment, retriever, top_k=top_k)
    return Task(environment_factory, partial(_draw, rows, joined=not own))


def _is_file(name: str) -> bool:
    return os.path.isfile(name) or Path(name).suffix in (".json", ".jsonl", ".parquet", ".gz")


def _read_questions(dataset: str) -> tuple[list[Row], list[Passage]]:
    """The rows, and the passages that come with them."""
    found = load_fanoutqa() if dataset == FANOUTQA else load_question_set(dataset)
    return list(found.questions), found.corpus


def _own_rows(dataset: str) -> list[Row]:
    rows: Iterable[Row] = import_object(dataset)()
    rows = [{"question_id": str(number), **row} for number, row in enumerate(rows)]
    if not rows:
        raise ValueError(f"{dataset} returned no rows. Return one or more")
    for number, row in enumerate(rows):
        check_row(row, f"{dataset}, row {number}", "answers" if row.get("answers") else None)
    # Every row gets the same columns, because a dataset has those of its first row.
    columns: Row = dict.fromkeys(name for row in rows for name in row)
    return [columns | ({"answers": []} if "answers" in columns else {}) | row for row in rows]


def import_object(path: str) -> Any:
    """The object that an import path names: `module:name`, or `module.name` as in TRL's scripts.

    A module may lie in the current folder.

    Raises:
        `ValueError`: the module does not exist, or has no such object.
    """
    separator = ":" if ":" in path else "."
    module_name, _, name = path.rpartition(separator)
    if os.getcwd() not in sys.path:  # a console script has its own folder there
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not error.name or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there; what it imports is not
        raise ValueError(
            f"{path!r}: there is no module {module_name!r}. Give module:name, of a module that is installed or in "
            f"{os.getcwd()}"
        ) from error
    if not hasattr(module, name):
        raise ValueError(f"{path!r}: the module {module_name!r} has no {name!r}. Give module:name")
    return getattr(module, name)


def import_reward_funcs(
    names: Iterable[str] | None, environment_factory: Callable[[], Any]
) -> list[Callable[..., Any]]:
    """TRL reward functions by import path or by their name in `mempo_trl.tasks.search`.

    None gives MemPO's own, or no function if the environment computes the reward (`get_reward`).
    """
    if names is None:
        return [] if has_reward(environment_factory()) else [mempo_outcome_reward]
    return [import_object(name if set(":.") & set(name) else f"mempo_trl.tasks.search:{name}") for name in names]


def open_retriever(source: str) -> Retriever:
    """Opens what is searched.

    Args:
        source: the URL of a search server, a folder that `mempo index` wrote, or a corpus (see `load_corpus`), which is
            indexed in memory.

    Raises:
        `ValueError`: the corpus is empty, or of an unknown format.
        `FileNotFoundError`: the file or index does not exist.
    """
    if source.startswith(("http://", "https://")):
        return HTTPRetriever(source)
    if Path(source).is_dir():
        return BM25Retriever.load(source)
    return BM25Retriever.build(load_corpus(source))


def _world_rows(objectives: int | None, count: int | None, seed: int) -> list[Row]:
    return world_rows(100 if count is None else count, objectives or 4, split="test", seed=seed)


def _draw(rows: list[Row], objectives: int | None, count: int | None, seed: int, joined: bool = True) -> list[Row]:
    """`joined`: whether rows of one objective may be joined; those of another task may have columns that cannot."""
    if objectives is None:
        drawn = rows.copy()
        Random(seed).shuffle(drawn)
        return drawn[:count]
    drawn = [row for row in rows if len(row.get("answers") or ()) == objectives]
    if objectives == 1 or drawn or not joined:
        Random(seed).shuffle(drawn)
    else:
        drawn = _composed([row for row in rows if len(row["answers"]) == 1], objectives, seed)
    if not drawn:
        why = "too few have one to be joined" if joined else "rows of an import path are not joined"
        raise ValueError(f"no question has {objectives} objectives, and {why}")
    return drawn[:count]


def _composed(singles: list[Row], objectives: int, seed: int) -> list[Row]:
    from datasets import Dataset

    if len(singles) < objectives:
        return []
    return list(compose_objectives(Dataset.from_list(singles), objectives, seed))
