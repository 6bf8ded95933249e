"""How probable the answer is after each memory, for a model in this process."""

from functools import partial
from typing import TYPE_CHECKING

from ..inference.local_model import LocalModel
from ..memory import encode_answer, score_answers
from ..memory.scored import score_trajectories
from ..memory.spans import memory_spans

if TYPE_CHECKING:
    from ..inference.agent import MemoryAgent
    from ..traces.file import Trace
    from ..types import Episode


def add_answer_probabilities(trace: "Trace", agent: "MemoryAgent", episode: "Episode", answers: list[str]) -> None:
    """Writes P(answer | memory) and P(answer | history) of each turn into its trace (method.md, section 3).

    They are over all answer tokens: a threshold would hide what a memory has lost.

    Args:
        trace: of `episode`; changed in place.
        agent: whose model is in this process.
        episode: what it played.
        answers: the gold answers.
    """
    tokenizer = agent.tokenizer
    assert isinstance(agent.model, LocalModel)
    assert episode.prompt_ids is not None
    assert tokenizer is not None
    encoded = encode_answer(tokenizer, answers)
    score = partial(
        score_answers,
        agent.model.model,
        [episode.prompt_ids],
        [episode.completion_ids],
        [encoded.ids],
        pad_token_id=agent.model.pad_token_id,
    )
    spans = memory_spans(tokenizer, episode.completion_ids, [(turn.start, turn.end) for turn in episode.turns])
    history = [(0, turn.start) for turn in episode.turns]
    memories = score_trajectories([spans], [encoded], [history], len(trace["turns"]), score, threshold=None)
    for _, turn in memories.scored:
        trace["turns"][turn]["p_mem"] = memories.p_mem[0, turn].item()
        trace["turns"][turn]["p_baseline"] = memories.p_baseline[0, turn].item()
