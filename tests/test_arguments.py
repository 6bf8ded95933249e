"""Each mistake with the trainer's arguments, and then what its message says to write."""

from functools import partial

import pytest
from trl import GRPOConfig

from helpers import answer_reward, make_trainer, search
from mempo_trl import MemPOTrainer
from mempo_trl.tasks.search import BM25Retriever, Passage, SearchEnvironment

RETRIEVER = BM25Retriever.build([Passage("0", "Peru", "Lima is the capital.")])
FACTORY = partial(SearchEnvironment, RETRIEVER)


class Notebook:
    """An environment whose tool and helper have no docstring."""

    def reset(self, **row):
        """Starts an episode."""

    def look_up(self, query):
        return self.normalised(query)

    def normalised(self, query: str) -> str:
        return query.lower()


class Described(Notebook):
    def look_up(self, query: str) -> str:
        """
        Look something up.

        Args:
            query: What to look for.
        """
        return self._normalised(query)

    def _normalised(self, query):
        return query.lower()

    normalised = None


@pytest.fixture
def trainer_with(tmp_path, model, tokenizer, questions):
    def build(**options):
        options = {"tools": None, **options}
        return make_trainer(tmp_path, model, tokenizer, questions, trainer_options=options, max_steps=1)

    return build


def test_trl_s_configuration(tmp_path, model, questions):
    args = GRPOConfig(tmp_path, use_cpu=True, bf16=False)
    with pytest.raises(TypeError, match=r"got a GRPOConfig. Write MemPOConfig\(...\)"):
        MemPOTrainer(model, answer_reward, args, questions, tools=[search])


def test_an_environment_in_place_of_its_factory(trainer_with):
    message = r"got a SearchEnvironment that is made already.*functools.partial\(SearchEnvironment, ...\)"
    for mistake in (FACTORY(), {"search": FACTORY()}):
        with pytest.raises(TypeError, match=message):
            trainer_with(environment_factory=mistake)
    trainer_with(environment_factory=FACTORY).train()


def test_one_environment_for_all(trainer_with):
    shared = FACTORY()
    with pytest.raises(ValueError, match=r"gave the same SearchEnvironment twice.*Make a new one in each call"):
        trainer_with(environment_factory=lambda: shared)
    trainer_with(environment_factory=lambda: FACTORY())


def test_a_tool_without_a_description(trainer_with):
    with pytest.raises(ValueError, match=r"the tool Notebook.look_up cannot be described.*no docstring(.|\n)*Args:"):
        trainer_with(environment_factory=Notebook)
    trainer_with(environment_factory=Described).train()

    def bare(query: str) -> str:
        return query

    def half(query):
        """Looks something up.

        Args:
            query: what to look for.
        """

    for tool, message in ((bare, "the tool bare .*no docstring"), (half, "the tool half .*missing a type hint")):
        with pytest.raises(ValueError, match=message):
            trainer_with(tools=[tool])


def test_a_tool_that_is_no_list(trainer_with):
    with pytest.raises(TypeError, match=r"tools must be a list of functions, got a function. Write tools=\[...\]"):
        trainer_with(tools=search)
    trainer_with(tools=[search])
