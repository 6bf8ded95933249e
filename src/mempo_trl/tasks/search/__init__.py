"""The search task: questions, retrieval, environment and rewards. Needs no torch and no TRL."""

from .corpora import Passage, load_corpus
from .data import compose_objectives, load_hotpotqa, load_question_set, load_questions
from .environment import SearchEnvironment
from .fanoutqa import load_fanoutqa
from .prompts import SYSTEM_PROMPT, build_prompt
from .remote import HTTPRetriever
from .retrieval import BM25Retriever, RetrievalError, Retriever
from .rewards import (
    exact_match,
    exact_match_reward,
    extract_answer,
    f1_reward,
    f1_score,
    format_reward,
    is_well_formed,
    mempo_outcome_reward,
    normalize_answer,
    objective_scores,
    partial_credit_reward,
)
from .rows import QuestionSet, validate_rows

__all__ = [
    "SYSTEM_PROMPT",
    "BM25Retriever",
    "HTTPRetriever",
    "Passage",
    "QuestionSet",
    "RetrievalError",
    "Retriever",
    "SearchEnvironment",
    "build_prompt",
    "compose_objectives",
    "exact_match",
    "exact_match_reward",
    "extract_answer",
    "f1_reward",
    "f1_score",
    "format_reward",
    "is_well_formed",
    "load_corpus",
    "load_fanoutqa",
    "load_hotpotqa",
    "load_question_set",
    "load_questions",
    "mempo_outcome_reward",
    "normalize_answer",
    "objective_scores",
    "partial_credit_reward",
    "validate_rows",
]
