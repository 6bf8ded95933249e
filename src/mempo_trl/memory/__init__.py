"""The method: memories on token ids, their reward, their advantage. It knows no trainer and no task."""

from .advantages import memory_advantages, token_advantages
from .answers import ANSWER_TEMPLATE, EncodedAnswer, encode_answer
from .rewards import MemoryScore, memory_rewards, score_memories
from .scoring.separate import score_answers
from .spans import MemorySpan, find_memory_spans
from .turns import find_turns

__all__ = [
    "ANSWER_TEMPLATE",
    "EncodedAnswer",
    "MemoryScore",
    "MemorySpan",
    "encode_answer",
    "find_memory_spans",
    "find_turns",
    "memory_advantages",
    "memory_rewards",
    "score_answers",
    "score_memories",
    "token_advantages",
]
