"""The search task as a TRL environment: one tool, `search`, and text that cannot be mistaken for the policy's own."""

import logging
from typing import Any

from ...text import escape
from .corpora import Passage
from .prompts import ANSWER_TAG
from .retrieval import Retriever

logger = logging.getLogger(__name__)

_CUT = " ... (cut)"


class SearchEnvironment:
    """A question answered by searching, for `environment_factory` of TRL's `GRPOTrainer`.

    Use `functools.partial(SearchEnvironment, retriever, ...)` as the factory: each rollout has its own instance,
    and all share the retriever.

    A search that cannot be done never ends the rollout: the agent reads a short error, and `failures` counts it.

    Args:
        retriever: what finds passages.
        top_k: passages for each search.
        max_characters: of a search's whole result; the rest is cut, with a marker.
        max_query_characters: a longer query is answered with an error.

    Attributes:
        turn_text (`str`): the policy's whole current turn; the turn loop sets it before the turn's tools run.
        failures (`int`): searches since `reset` that gave an error.
    """

    def __init__(
        self,
        retriever: Retriever,
        top_k: int = 3,
        max_characters: int = 4_000,
        max_query_characters: int = 1_000,
    ):
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}")
        self._retriever = retriever
        self._top_k = top_k
        self._max_characters = max_characters
        self._max_query_characters = max_query_characters
        self.reset()

    def reset(self, **row: Any) -> None:
        """Starts an episode. `row` is the dataset's row; the question is in its prompt, so none of it is needed."""
        self.turn_text = ""
        self.failures = 0

    @property
    def done(self) -> bool:
        """Whether the current turn holds a closed answer block: the episode is over."""
        _, opened, rest = self.turn_text.partition(f"<{ANSWER_TAG}>")
        return bool(opened) and f"</{ANSWER_TAG}>" in rest

    def search(self, query: str) -> str:
        """
        Search the collection for passages about one fact.

        Args:
            query: What to look for: a name, a few key words, or a short question about one fact.

        Returns:
            The passages that fit best, each with its title.
        """
        if not isinstance(query, str) or not query.strip():
            return self._failed("the query must be a text of at least one word")
        if len(query) > self._max_query_characters:
            limit = self._max_query_characters
            return self._failed(f"the query has {len(query)} characters; at most {limit} can be used")
        try:
            (passages,) = self._retriever.search([query], self._top_k)
        except Exception as error:
            # A retriever is often remote and always the user's: whatever it raises is this episode's bad luck.
            logger.warning("search failed: %s: %s", type(error).__name__, error)
            return self._failed(_clip(str(error), 200) or type(error).__name__)
        return self._render(passages) if passages else "No passage fits this query. Try other words."

    def _render(self, passages: list[Passage]) -> str:
        texts = [f"{passage.title}\n{passage.text}" if passage.title else passage.text for passage in passages]
        text = "\n\n".join(f"({number}) {text}" for number, text in enumerate(texts, start=1))
        # Cut before and after: a huge text is not worth escaping, and escaping makes it longer.
        return _clip(escape(text[: self._max_characters + 1]), self._max_characters)

    def _failed(self, reason: str) -> str:
        self.failures += 1
        return escape(f"Error: {reason}. Try another search, or answer from what you know.")


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + _CUT
