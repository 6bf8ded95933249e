"""The cold start's data: traces of an expert, of gold searches or of a teacher, and the rows that teach their turns."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..inference.agent import MemoryAgent
from ..inference.trajectory import Trajectory
from ..memory.turns import find_turns
from ..rollout.chat_format import ChatFormat, environment_tools
from ..rollout.context import visible_context
from ..tasks.outcome import RewardFunction, outcome_reward
from ..tasks.search.environment import SearchEnvironment
from ..tasks.search.expert import gold_conversation
from ..tasks.search.rewards import mempo_outcome_reward
from ..tasks.search.rows import Row
from ..tasks.world.world import CAREFUL
from ..traces.convert import recorded_trajectory, trajectory_trace
from ..traces.file import Trace, Turn, read_traces, write_traces


def expert_trajectories(
    rows: Iterable[Row], environment_factory: Callable[[], SearchEnvironment]
) -> Iterator[tuple[Row, Trajectory | None]]:
    """Conversations that are known to be right: of the embedded world's expert, or along gold searches.

    Args:
        rows: of the embedded world (with `people`), or with a `decomposition` (see `tasks.search.data`).
        environment_factory: where gold searches are made.

    Yields:
        Each row and its trajectory; None where a search did not find what it should.

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
        yield row, messages and recorded_trajectory(row["prompt"], messages, tools)


def teacher_trajectories(
    rows: Sequence[Row], agent: MemoryAgent, concurrency: int = 16, seed: int | None = None
) -> Iterator[tuple[Row, Trajectory]]:
    """Each row and what `agent` does with it."""
    return zip(rows, agent.run_many(rows, concurrency, seed), strict=True)


def rejected_path(path: str | Path) -> Path:
    """Where trajectories go that are not good enough for `path`: beside it."""
    path = Path(path)
    return path.with_name(f"{path.stem}.rejected{path.suffix}")


def remaining_rows(path: str | Path, rows: Iterable[Row]) -> list[Row]:
    """The rows that have no trace yet, kept or rejected. A last line that was cut short does not count."""
    files = [file for file in (Path(path), rejected_path(path)) if file.exists()]
    done = {trace["question_id"] for file in files for trace in read_traces(file)}
    return [row for row in rows if row["question_id"] not in done]


def write_demonstrations(
    path: str | Path,
    trajectories: Iterable[tuple[Row, Trajectory | None]],
    context: str = "memory",
    on_trace: Callable[[Counter[str]], None] | None = None,
    reward_funcs: Sequence[RewardFunction] = (mempo_outcome_reward,),
) -> Counter[str]:
    """Appends right and well-formed trajectories to a trace file, and the others to the file of the rejected.

    Each is on disk before the next is asked for, so that a run that was stopped goes on with `remaining_rows`. What
    ended with an error is in neither file, and is tried again then.

    Args:
        path: of the trace file.
        trajectories: rows with what was done on them; None is counted as "unsupported".
        context: that they were played in.
        on_trace: called with the counts after each.
        reward_funcs: TRL reward functions; a trajectory is kept if their sum is 1 or more.

    Returns:
        How many were "kept", "rejected", "error" or "unsupported".
    """
    counts: Counter[str] = Counter()
    for row, trajectory in trajectories:
        if trajectory is None or trajectory.stop_reason == "error":
            counts["error" if trajectory else "unsupported"] += 1
        else:
            reward = outcome_reward(row, trajectory, reward_funcs)
            trace = trajectory_trace(trajectory, row, context, {"outcome": reward})
            write_traces(path if reward >= 1.0 else rejected_path(path), [trace])
            counts["kept" if reward >= 1.0 else "rejected"] += 1
        if on_trace:
            on_trace(counts)
    return counts


def sft_rows(
    trace: Trace, chat: ChatFormat, context: str = "memory", context_turns: int = 1
) -> list[dict[str, list[int]]]:
    """The rows of TRL's `SFTTrainer` that teach the turns of one trace, under the context that they will see.

    A row has `input_ids`, exactly those that the turn loop would have, and `assistant_masks`: 1 on turns, 0 on the
    prompt and on what tools returned. "full" gives one row; "memory" one for each turn, with its visible context before
    it (method.md, section 6).

    Args:
        trace: its prompt, the schemas of its tools, its turns' texts and tool results are used.
        chat: renders them.
        context: "full" or "memory".
        context_turns: past turns that the "memory" context keeps.

    Raises:
        `ValueError`: the trace does not say which tools there were.
    """
    if "tools" not in trace:
        raise ValueError(
            f"the trace of question {trace['question_id']!r} does not say which tools its prompt showed. Write the "
            "file again with this mempo-trl"
        )
    prompt = chat.prompt_ids(trace["messages"], trace["tools"])
    ids: list[int] = []
    mask: list[int] = []
    rows = []
    for turn in trace["turns"]:
        text = [*chat.tokenizer.encode(turn["text"], add_special_tokens=False), chat.tokenizer.eos_token_id]
        visible = visible_context(prompt, ids, mask, context, context_turns)
        rows.append({"input_ids": visible + text, "assistant_masks": [0] * len(visible) + [1] * len(text)})
        suffix = _results(turn, chat)
        ids, mask = ids + text + suffix, mask + [1] * len(text) + [0] * len(suffix)
    if context == "memory":
        return rows
    end = find_turns(mask)[-1][1]
    return [{"input_ids": prompt + ids[:end], "assistant_masks": [0] * len(prompt) + mask[:end]}]


def _results(turn: Turn, chat: ChatFormat) -> list[int]:
    """The rendered tool results of a turn. None for a last turn whose calls were not made any more."""
    if not turn["tool_results"]:
        return []
    calls = zip(turn["tool_calls"], turn["tool_results"], strict=True)
    return chat.suffix_ids([{"role": "tool", "name": call["name"], "content": result} for call, result in calls])
