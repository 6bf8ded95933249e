"""The trace file: one episode a line, written by training and evaluation, read by the viewer and the plots."""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NotRequired, TypedDict, cast

SCHEMA_VERSION = 2
# What schema 1 called otherwise, in each turn.
_RENAMED = {"p_full": "p_baseline", "answer_logps_full": "answer_logps_baseline"}


class ToolCall(TypedDict):
    """One tool call, as parsed from a turn."""

    name: str
    arguments: dict[str, Any]


class Turn(TypedDict):
    """One model message and the tool results that follow it. `None` stands for what was not computed.

    Lists over tokens are parallel to `tokens`; lists over answer tokens are parallel to the trace's `answer_tokens`.
    """

    text: str  # the whole turn, memory and tags included
    tokens: list[str]  # its tokens as text; empty when the backend gives text only
    memory: list[int] | None  # half-open range of `tokens` that the closed memory takes, tags included
    memory_text: str | None
    advantages: list[float] | None  # total advantage of each token
    memory_reward: float | None
    memory_advantage: float | None
    p_mem: float | None  # P(answer | prompt, memory)
    p_baseline: float | None  # P(answer | what the memory is compared with: by default the whole history)
    answer_logps_mem: list[float] | None
    answer_logps_baseline: list[float] | None
    kept: list[bool] | None  # answer tokens that passed the threshold
    context_tokens: int  # tokens that the model saw when it began this turn
    tool_calls: list[ToolCall]
    tool_results: list[str]
    first_visible: NotRequired[int]  # the first turn in its context, from 0; its memory stands for what lies before it
    compaction: NotRequired[bool]  # in "budget" context: whether the turn was asked for, to rewrite the memory
    user: NotRequired[str]  # what the loop said behind the results, before or behind a compaction


class Trace(TypedDict):
    """One episode: what was asked, what each turn wrote, and the credit that each token got."""

    schema_version: int
    step: int | None  # training step; None outside training
    question_id: str
    question: str
    answers: list[str]  # gold, one for each objective
    context: str  # "full", "memory" or "budget"
    stop_reason: str
    reward: float | None
    rewards: dict[str, float]  # by reward function
    outcome_advantage: float | None
    messages: list[dict[str, Any]]  # the prompt
    tools: NotRequired[list[dict[str, Any]]]  # JSON schemas of what the model could call
    prompt_tokens: int
    total_tokens: int
    peak_tokens: int
    answer_tokens: list[str] | None  # the scored gold answer text, in tokens
    answer_mask: list[bool] | None  # which of them are answer tokens
    turns: list[Turn]


def write_traces(path: str | Path, traces: Iterable[Trace]) -> None:
    """Append episodes to a trace file, one JSON object a line. Creates the file and its folder.

    A last line that a crash cut short is removed first, so that the file stays readable.

    Raises:
        ValueError: an episode does not follow the schema, or holds NaN or infinity.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        _end_last_line(path)
    with path.open("a", encoding="utf-8") as file:
        for trace in traces:
            where = f"trace of question {trace.get('question_id')!r}"
            check_trace(trace, where)
            try:
                line = json.dumps(trace, allow_nan=False)
            except ValueError as error:
                raise ValueError(f"{where} contains NaN or infinity. Write None for missing values.") from error
            file.write(line + "\n")


def read_traces(path: str | Path) -> Iterator[Trace]:
    """Yield the episodes of a trace file, in file order; `list(read_traces(path))` holds them all.

    A last line that is cut short (the writer was stopped) is skipped with a warning.

    Raises:
        ValueError: a line before the last is not JSON, or an episode does not follow the schema.
    """
    path = Path(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}:{number}"
            try:
                record = _parse(line, where)
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                if file.peek(1):
                    raise ValueError(
                        f"{where}: not JSON ({error}). Remove the line, or write the file again."
                    ) from error
                warnings.warn(f"{where}: the last line is cut short; skipped.", stacklevel=2)
                return
            record = _upgraded(record)
            check_trace(record, where)
            yield cast(Trace, record)


def _upgraded(record: Any) -> Any:
    """An episode of schema 1 under today's names; any other record as it is."""
    if not isinstance(record, dict) or record.get("schema_version") != 1 or not isinstance(record.get("turns"), list):
        return record
    turns = [{_RENAMED.get(key, key): value for key, value in turn.items()} for turn in record["turns"]]
    return {**record, "schema_version": SCHEMA_VERSION, "turns": turns}


def check_trace(record: Any, where: str) -> None:
    """Check one episode against the schema: version, keys, and the lengths of parallel lists.

    Args:
        record: what should be a `Trace`.
        where: names the episode in the error.

    Raises:
        ValueError: with `where` and what is wrong.
    """
    if not isinstance(record, Mapping) or "schema_version" not in record:
        raise ValueError(f"{where}: not a trace: no schema_version. Is this a file from mempo?")
    if record["schema_version"] != SCHEMA_VERSION:
        raise ValueError(
            f"{where}: schema_version {record['schema_version']!r}, but this mempo-trl reads 1 to {SCHEMA_VERSION}. "
            "Install the mempo-trl that wrote the file, or write the traces again with this one."
        )
    _check_keys(record, Trace.__required_keys__, where)
    _check_length(record["answer_mask"], record["answer_tokens"], f"{where}: answer_mask")
    for number, turn in enumerate(record["turns"], start=1):
        _check_turn(turn, record["answer_tokens"], f"{where}, turn {number}")


def _check_turn(turn: Mapping[str, Any], answer_tokens: list[str] | None, where: str) -> None:
    _check_keys(turn, Turn.__required_keys__, where)
    _check_length(turn["advantages"], turn["tokens"], f"{where}: advantages")
    for name in ("answer_logps_mem", "answer_logps_baseline", "kept"):
        _check_length(turn[name], answer_tokens, f"{where}: {name}")
    if turn["memory"] is not None:
        start, end = turn["memory"]
        if not 0 <= start < end <= len(turn["tokens"]):
            raise ValueError(
                f"{where}: memory {turn['memory']} is not a range within its {len(turn['tokens'])} tokens."
            )


def _check_keys(record: Mapping[str, Any], required: frozenset[str], where: str) -> None:
    missing = sorted(required - record.keys())
    if missing:
        raise ValueError(f"{where}: missing {', '.join(missing)} (None stands for what was not computed).")


def _check_length(values: list[Any] | None, parallel: list[str] | None, where: str) -> None:
    if values is not None and len(values) != len(parallel or []):
        raise ValueError(f"{where}: got {len(values)} values, expected {len(parallel or [])}, one for each token.")


def _parse(line: bytes, where: str) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(f"{where} contains {name}, which is not JSON. Write null for missing values.")

    return json.loads(line, parse_constant=refuse)


def _end_last_line(path: Path) -> None:
    """Make the file end at the end of a line: drop what a crash cut short, or add the newline that is missing."""
    with path.open("rb+") as file:
        start = _last_line_start(file)
        file.seek(start)
        tail = file.read()
        if not tail:
            return
        try:
            _parse(tail, str(path))
            file.write(b"\n")
        except ValueError:
            warnings.warn(f"{path}: the last line was cut short; removed before appending.", stacklevel=3)
            file.truncate(start)


def _last_line_start(file: BinaryIO) -> int:
    """Offset just after the last newline, found from the end: a trace file can be large."""
    end = file.seek(0, 2)
    while end > 0:
        start = max(0, end - 65536)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
