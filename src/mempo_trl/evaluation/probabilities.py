"""How probable the answer is after each memory, for a model in this process."""

from functools import partial
from typing import TYPE_CHECKING

from ..inference.local_model import LocalModel
from ..memory import encode_answer, find_memory_spans, score_answers
from ..memory.scored import judge_memories
from ..memory.turns import find_turns

if TYPE_CHECKING:
    from ..inference.agent import MemoryAgent
    from ..inference.trajectory import Trajectory
    from ..traces.file import Trace


def add_answer_probabilities(
    trace: "Trace", agent: "MemoryAgent", trajectory: "Trajectory", answers: list[str]
) -> None:
    """Writes P(answer | memory) and P(answer | history) of each turn into its trace (method.md, section 3).

    They are over all answer tokens: a threshold would hide what a memory has lost.

    Args:
        trace: of `trajectory`; changed in place.
        agent: whose model is in this process.
        trajectory: what it played.
        answers: the gold answers.
    """
    episode, tokenizer = trajectory.episode, agent.tokenizer
    assert isinstance(agent.model, LocalModel)
    assert episode is not None
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
    spans = find_memory_spans(tokenizer, episode.completion_ids, episode.mask)
    history = [(0, start) for start, _ in find_turns(episode.mask)]
    judged = judge_memories([spans], [encoded], [history], len(trace["turns"]), score, threshold=None)
    for _, turn in judged.judged:
        trace["turns"][turn]["p_mem"] = judged.p_mem[0, turn].item()
        trace["turns"][turn]["p_full"] = judged.p_full[0, turn].item()
