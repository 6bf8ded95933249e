"""The cold start's data: traces of an expert, of gold searches or of a teacher, and the rows that teach their turns."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from ..inference.agent import MemoryAgent
from ..parts import in_order
from ..rollout.chat_format import ChatFormat, environment_tools
from ..rollout.chat_loop import without_calls
from ..rollout.context import first_visible, visible_ids
from ..rollout.reading import HERMES_TEMPLATE, ReadTurn, TurnReader
from ..tasks.outcome import RewardFunction, outcome_reward
from ..tasks.search.environment import SearchEnvironment
from ..tasks.search.expert import gold_conversation
from ..tasks.search.rewards import mempo_outcome_reward
from ..tasks.search.rows import Row
from ..tasks.world.world import CAREFUL
from ..traces.convert import episode_trace, trace_episode, written_episode
from ..traces.file import Trace, read_traces, write_traces
from ..types import Episode, Turn


def expert_episodes(
    rows: Iterable[Row], environment_factory: Callable[[], SearchEnvironment]
) -> Iterator[tuple[Row, Episode | None]]:
    """Conversations that are known to be right: of the embedded world's expert, or along gold searches.

    Args:
        rows: of the embedded world (with `people`), or with a `decomposition` (see `tasks.search.data`).
        environment_factory: where gold searches are made.

    Yields:
        Each row and its episode; None where a search did not find what it should.

    Raises:
        `ValueError`: a row has neither.
    """
    tools = {tool.__name__: tool for tool in environment_tools(environment_factory())}
    for row in rows:
        if "people" in row:
            messages: Any = CAREFUL.trace(row)
        elif row.get("decomposition"):
            messages = gold_conversation(row, environment_factory())
        else:
            raise ValueError(
                f"question {row.get('question_id')!r} has no gold searches (column decomposition). Use a teacher, or "
                "FanOutQA or HotpotQA"
            )
        yield row, messages and written_episode(row, messages, tools)


def teacher_episodes(
    rows: Sequence[Row], agent: MemoryAgent, concurrency: int = 16, seed: int | None = None
) -> Iterator[tuple[Row, Episode]]:
    """Each row and what `agent` does with it."""
    return zip(rows, agent.run_many(rows, concurrency, seed), strict=True)


def rejected_path(path: str | Path) -> Path:
    """Where episodes go that are not good enough for `path`: beside it."""
    path = Path(path)
    return path.with_name(f"{path.stem}.rejected{path.suffix}")


def remaining_rows(path: str | Path, rows: Iterable[Row]) -> list[Row]:
    """The rows that have no trace yet, kept or rejected. A last line that was cut short does not count."""
    files = [file for file in (Path(path), rejected_path(path)) if file.exists()]
    done = {trace["question_id"] for file in files for trace in read_traces(file)}
    return [row for row in rows if row["question_id"] not in done]


def write_demonstrations(
    path: str | Path,
    episodes: Iterable[tuple[Row, Episode | None]],
    context: str = "memory",
    on_trace: Callable[[Counter[str]], None] | None = None,
    reward_funcs: Sequence[RewardFunction] = (mempo_outcome_reward,),
) -> Counter[str]:
    """Appends right and well-formed episodes to a trace file, and the others to the file of the rejected.

    Each is on disk before the next is asked for, so that a run that was stopped resumes with `remaining_rows`. What
    ended with an error is in neither file, and is tried again then.

    Args:
        path: of the trace file.
        episodes: rows with what was done on them; None is counted as "unsupported".
        context: that they were played in.
        on_trace: called with the counts after each.
        reward_funcs: TRL reward functions; a trajectory is kept if their sum is 1 or more.

    Returns:
        How many were "kept", "rejected", "error" or "unsupported".
    """
    counts: Counter[str] = Counter()
    for row, episode in episodes:
        if episode is None or episode.stop_reason == "error":
            counts["error" if episode else "unsupported"] += 1
        else:
            reward = outcome_reward(dict(row), episode, reward_funcs)
            trace = episode_trace(episode, context, rewards={"outcome": reward})
            write_traces(path if reward >= 1.0 else rejected_path(path), [trace])
            counts["kept" if reward >= 1.0 else "rejected"] += 1
        if on_trace:
            on_trace(counts)
    return counts


def sft_rows(
    trace: Trace, chat: ChatFormat, context: str = "memory", context_turns: int = 1
) -> list[dict[str, list[int]]]:
    """The rows of TRL's `SFTTrainer` that teach the turns of one trace, under the context that they will see.

    A row has `input_ids`, exactly those that the turn loop would have, and `assistant_masks`: 1 on the turns that it
    teaches, 0 on the prompt, on what tools returned and on turns that are only seen. "memory" gives a row for each
    turn, with its visible context before it (method.md, section 6); in other contexts turns whose context starts at the
    same turn share a row, so that "full" gives one.

    Args:
        trace: its prompt, the schemas of its tools, its turns' texts and tool results are used.
        chat: renders them.
        context: see `rollout.context`.
        context_turns: past turns that the "memory" context keeps.

    Raises:
        `ValueError`: the trace does not say which tools there were, or its calls cannot be written in the syntax of
            the chat template.
    """
    if "tools" not in trace:
        raise ValueError(
            f"the trace of question {trace['question_id']!r} does not say which tools its prompt showed. Write the "
            "file again with this mempo-trl"
        )
    played = trace_episode(trace)
    episode = Episode(prompt_ids=chat.prompt_ids(played.prompt, list(played.tools.values())))
    for turn in played.turns:
        first = first_visible(episode.turns, context, context_turns)
        suffix = chat.suffix_ids(turn.results) if turn.results else []
        episode.turns.append(
            Turn(turn.text, first_visible=first, ids=_turn_ids(turn, trace, chat), result_ids=suffix,
                 compaction=turn.compaction)
        )  # fmt: skip
    return _rows(episode, alone=context == "memory")


def _rows(episode: Episode, alone: bool) -> list[dict[str, list[int]]]:
    """A row for each stretch of turns whose context starts at the same turn, or for each turn `alone`."""
    turns = range(len(episode.turns))
    rows = []
    for _, stretch in groupby(turns, lambda number: number if alone else episode.turns[number].first_visible):
        first, *others = stretch
        last = others[-1] if others else first
        seen = visible_ids(replace(episode, turns=episode.turns[:first]), episode.turns[first].first_visible)
        # What follows the last turn of the row is seen by none of its turns.
        taught = Episode(turns=[*episode.turns[first:last], replace(episode.turns[last], result_ids=[])])
        rows.append({"input_ids": seen + taught.completion_ids, "assistant_masks": [0] * len(seen) + taught.mask})
    return rows


def _turn_ids(turn: Turn, trace: Trace, chat: ChatFormat) -> list[int]:
    """The ids of a turn that `chat` reads as it was: its own text, or that text with its calls written anew."""
    text, calls = turn.text, [call["function"] for call in turn.tool_calls]
    own = chat.read(text, trace["tools"])
    opens_again = chat.opens_thought and "<think>" in text
    escaped = calls and "\\u" in text  # an endpoint's JSON, which no chat template writes
    if _same_calls(own, calls) and (calls or in_order(own.parts, first=True)) and not (opens_again or escaped):
        return chat.tokenizer.encode(text + chat.ends[0 if calls else 1], add_special_tokens=False)
    if not _same_calls(TurnReader(HERMES_TEMPLATE).read(text), calls):
        raise ValueError(
            f"the trace of question {trace['question_id']!r} has calls in the syntax of another chat template, which "
            "cannot be taken out of its turns. Write the file again with the model that is to learn, an expert or a "
            "teacher behind a chat endpoint"
        )
    return chat.turn_ids(without_calls(text), calls)


def _same_calls(read: ReadTurn, calls: list[Any]) -> bool:
    return read.error is None and [call["function"] for call in read.calls] == calls
