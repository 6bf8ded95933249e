"""Plausible traces from a seed: agents that look up two films, and whose memories lose a fact now and then."""

import json
import math
import random
import re
from collections.abc import Iterator
from statistics import mean, stdev
from typing import Any

from mempo_trl.traces.file import SCHEMA_VERSION, Trace, Turn

FILMS = [
    "The Glass Harbour",
    "Night over Tallinn",
    "A Quiet Ledger",
    "Salt and Iron",
    "The Last Ferry",
    "Winter Orchard",
]
DIRECTORS = ["Mira Okonkwo", "Tomas Lindqvist", "Ana Beltrán", "Jun Takeda", "Ruth Adeyemi", "Piotr Zielinski"]
CITIES = ["Gdańsk", "Valparaíso", "Kumasi", "Kanazawa", "Bergen", "Leipzig"]
GROUP_SIZE = 8
SYSTEM = "You answer questions by searching. Begin every turn after the first with a <mem> block."


def split_tokens(text: str) -> list[str]:
    """Pieces of a text that join to it, cut as a byte-pair vocabulary would."""
    return re.findall(r"<[/|]?\w+\|?>| ?\w{1,6}|\w+|[^\w\s]|\s", text)


def make_traces(count: int, seed: int = 0, context: str = "full") -> Iterator[Trace]:
    """`count` episodes, in groups of `GROUP_SIZE` that share a question."""
    rng = random.Random(seed)
    for group in range(math.ceil(count / GROUP_SIZE)):
        episodes = _group(rng, f"films-{seed}-{group:04d}", step=group // 4 + 1, context=context)
        yield from episodes[: count - group * GROUP_SIZE]


def _group(rng: random.Random, question_id: str, step: int, context: str) -> list[Trace]:
    films, directors, cities = (rng.sample(names, 2) for names in (FILMS, DIRECTORS, CITIES))
    facts = [(f"Who directed {films[0]}?", films[0], directors[0], f"{films[0]} was directed by {directors[0]}.")]
    facts.append(
        (f"Where was the director of {films[1]} born?", films[1], directors[1], f"{films[1]}: {directors[1]}.")
    )
    facts.append(("", directors[1], cities[1], f"{directors[1]} was born in {cities[1]}."))
    question, answers = " ".join(fact[0] for fact in facts if fact[0]), [directors[0], cities[1]]
    episodes = [_episode(rng, facts, question, answers, context) for _ in range(GROUP_SIZE)]
    for episode in episodes:
        episode.update(question_id=question_id, step=step)
    _add_advantages(episodes)
    return episodes


def _episode(rng: random.Random, facts: Any, question: str, answers: list[str], context: str) -> Trace:
    answer_text = "\n<think>\nI know enough.\n</think>\n<answer>\n" + "; ".join(answers) + "\n</answer>"
    answer_tokens = split_tokens(answer_text)
    start = len(split_tokens(answer_text[: answer_text.index(answers[0])]))
    mask = [start <= i < len(answer_tokens) - 2 and token != ";" for i, token in enumerate(answer_tokens)]
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    trace: Trace = {
        **{"schema_version": SCHEMA_VERSION, "step": None, "question_id": "", "question": question, "answers": answers},
        **{"context": context, "stop_reason": "done", "reward": 0.0, "rewards": {}, "outcome_advantage": None},
        **{"messages": messages, "prompt_tokens": 212, "total_tokens": 0, "peak_tokens": 0},
        **{"answer_tokens": answer_tokens, "answer_mask": mask, "turns": []},
    }  # type: ignore[typeddict-item]
    known: list[str] = []
    found: list[str] = []
    seen = trace["prompt_tokens"]
    for number in range(len(facts) + 1):
        known = [fact for fact in known if rng.random() > 0.2]
        turn = _turn(rng, facts, number, known, found, answers)
        turn["context_tokens"] = seen
        if number:
            _add_probabilities(rng, turn, answers, answer_tokens, mask, known, found)
        trace["turns"].append(turn)
        written = len(turn["tokens"]) + sum(len(split_tokens(text)) for text in turn["tool_results"])
        trace["total_tokens"] = (trace["total_tokens"] or seen) + written
        trace["peak_tokens"] = max(trace["peak_tokens"], seen + len(turn["tokens"]))
        seen = written + (seen if context == "full" else trace["prompt_tokens"])
        if number < len(facts):
            known, found = [*known, facts[number][3]], [*found, facts[number][3]]
    if rng.random() < 0.1:
        trace["turns"].pop()
        trace["stop_reason"] = "max_turns"
    right = trace["stop_reason"] == "done" and all(answer in trace["turns"][-1]["text"] for answer in answers)
    trace["reward"] = float(right)
    trace["rewards"] = {"exact_match_reward": float(right), "format_reward": float(trace["stop_reason"] == "done")}
    return trace


def _turn(rng: random.Random, facts: Any, number: int, known: list[str], found: list[str], answers: list[str]) -> Turn:
    memory = f"<mem>\n{' '.join(known) or 'Nothing found yet.'}\n</mem>" if number else ""
    calls, results = [], []
    if number < len(facts):
        _, asked, _, sentence = facts[number]
        query = f"{asked} {'born' if number == 2 else 'director'}"
        calls = [{"name": "search", "arguments": {"query": query}}]
        rest = f"\n<think>\nI still need {asked}.\n</think>\n<tool_call>\n"
        rest += json.dumps({"name": "search", "arguments": {"query": query}}) + "\n</tool_call><|im_end|>"
        lines = [f'"{asked}" {sentence}', f'"{rng.choice(FILMS)}" A film about the sea & <b>memory</b>.']
        results = ["\n".join(f"[{i}] {line} It was noted by the press at the time." for i, line in enumerate(lines, 1))]
    else:
        said = [answer if any(answer in fact for fact in known + found[:1]) else "unknown" for answer in answers]
        rest = f"\n<think>\nI know enough.\n</think>\n<answer>{'; '.join(said)}</answer><|im_end|>"
    text = (memory + rest).lstrip()
    span = [0, len(split_tokens(memory))] if memory else None
    return {
        **{"text": text, "tokens": split_tokens(text), "memory": span, "memory_text": memory[6:-7] or None},
        **{"advantages": None, "memory_reward": None, "memory_advantage": None, "p_mem": None, "p_baseline": None},
        **{"answer_logps_mem": None, "answer_logps_baseline": None, "kept": None},
        **{"context_tokens": 0, "tool_calls": calls, "tool_results": results},
    }  # type: ignore[typeddict-item]


def _add_probabilities(
    rng: random.Random, turn: Turn, answers: list[str], tokens: list[str], mask: list[bool], known: Any, found: Any
) -> None:
    def logps(facts: list[str]) -> list[float]:
        words = " ".join(facts)
        sure = [any(token.strip() in answer for answer in answers) and token.strip() in words for token in tokens]
        return [-rng.uniform(0.01, 0.3) if s or not m else -rng.uniform(1, 5) for s, m in zip(sure, mask, strict=True)]

    mem, full = logps(known), logps(found)
    kept = [m and max(a, b) > math.log(0.5) for a, b, m in zip(mem, full, mask, strict=True)]
    p_mem, p_baseline = (
        math.exp(mean([x for x, k in zip(side, kept, strict=True) if k] or [0.0])) for side in (mem, full)
    )
    turn.update(answer_logps_mem=mem, answer_logps_baseline=full, kept=kept, p_mem=p_mem, p_baseline=p_baseline)
    turn["memory_reward"] = p_mem - p_baseline


def _add_advantages(episodes: list[Trace]) -> None:
    outcomes = _z_scores([episode["reward"] or 0.0 for episode in episodes])
    pool = [turn for episode in episodes for turn in episode["turns"] if turn["memory_reward"] is not None]
    for turn, advantage in zip(pool, _z_scores([turn["memory_reward"] or 0.0 for turn in pool]), strict=True):
        turn["memory_advantage"] = advantage
    for episode, outcome in zip(episodes, outcomes, strict=True):
        episode["outcome_advantage"] = outcome
        for turn in episode["turns"]:
            start, end = turn["memory"] or (0, 0)
            extra = turn["memory_advantage"] or 0.0
            turn["advantages"] = [outcome + extra * (start <= i < end) for i in range(len(turn["tokens"]))]


def _z_scores(values: list[float]) -> list[float]:
    spread = stdev(values)
    return [(value - mean(values)) / spread if spread > 1e-4 else 0.0 for value in values]
