"""The trace file survives crashes, and refuses what it cannot read."""

import json
from pathlib import Path
from typing import Any

import pytest

from mempo_trl.traces.convert import episode_trace, trace_episode
from mempo_trl.traces.file import read_traces, write_traces
from report.sample_traces import make_traces


def test_written_traces_are_read_back_equal(tmp_path: Path) -> None:
    traces = list(make_traces(5))
    traces[0]["turns"][0]["text"] += "\u2028 line\nfeed \ud800 lone surrogate"
    path = tmp_path / "new" / "folder" / "traces.jsonl"
    write_traces(path, traces[:2])
    write_traces(path, traces[2:])
    assert list(read_traces(path)) == traces
    assert path.read_bytes().count(b"\n") == 5


def test_a_file_of_schema_1_is_read_under_today_s_names(tmp_path: Path) -> None:
    """What was called p_full and answer_logps_full; a file can go on in the schema of today."""
    old, new = make_traces(2)
    names = {"p_baseline": "p_full", "answer_logps_baseline": "answer_logps_full"}
    turns = [{names.get(name, name): value for name, value in turn.items()} for turn in old["turns"]]
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps({**old, "schema_version": 1, "turns": turns}) + "\n")
    write_traces(path, [new])
    assert list(read_traces(path)) == [old, new]


def test_a_trace_and_its_episode_say_the_same() -> None:
    for trace in make_traces(4):
        episode = trace_episode(trace)
        assert episode.prompt == trace["messages"]
        assert [turn.text for turn in episode.turns] == [turn["text"] for turn in trace["turns"]]
        assert [m["content"] for m in episode.messages if m["role"] == "tool"] == [
            result for turn in trace["turns"] for result in turn["tool_results"]
        ]
        again = episode_trace(episode, trace["context"])
        for name in ("question_id", "question", "answers", "context", "stop_reason", "messages"):
            assert again[name] == trace[name], name  # type: ignore[literal-required]
        assert [turn["tool_calls"] for turn in again["turns"]] == [turn["tool_calls"] for turn in trace["turns"]]
        assert (again["total_tokens"], again["peak_tokens"]) == (episode.total_tokens, episode.peak_tokens)


def test_a_torn_last_line_is_skipped_then_removed_by_the_next_write(tmp_path: Path) -> None:
    first, second, third = make_traces(3)
    path = tmp_path / "traces.jsonl"
    write_traces(path, [first, second])
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.warns(UserWarning, match=r"traces\.jsonl:2: the last line is cut short"):
        assert list(read_traces(path)) == [first]
    with pytest.warns(UserWarning, match="removed before appending"):
        write_traces(path, [third])
    assert list(read_traces(path)) == [first, third]


def test_a_long_torn_line_is_removed_whole(tmp_path: Path) -> None:
    [first, second] = make_traces(2)
    path = tmp_path / "traces.jsonl"
    write_traces(path, [first])
    with path.open("ab") as file:
        file.write(b'{"schema_version": 1, "question": "' + b"x" * 200_000)
    with pytest.warns(UserWarning, match="cut short"):
        write_traces(path, [second])
    assert list(read_traces(path)) == [first, second]


def test_appending_keeps_a_whole_line_that_lacks_its_newline(tmp_path: Path) -> None:
    first, second = make_traces(2)
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps(first))
    assert list(read_traces(path)) == [first]
    write_traces(path, [second])
    assert list(read_traces(path)) == [first, second]


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    write_traces(path, make_traces(2))
    lines = path.read_text().splitlines()
    path.write_text(f"{lines[0][:50]}\n{lines[1]}\n")
    with pytest.raises(ValueError, match=r"traces\.jsonl:1: not JSON"):
        list(read_traces(path))


def edited(**changes: Any) -> dict[str, Any]:
    return {**next(make_traces(1)), **changes}


def edited_turn(**changes: Any) -> dict[str, Any]:
    trace: dict[str, Any] = dict(next(make_traces(1)))
    return {**trace, "turns": [trace["turns"][0], {**trace["turns"][1], **changes}]}


def without_question() -> dict[str, Any]:
    return {key: value for key, value in edited().items() if key != "question"}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (edited(schema_version=3), r"schema_version 3, but this mempo-trl reads 1 to 2. Install"),
        ({"log_history": []}, "no schema_version"),
        ([1, 2], "no schema_version"),
        (without_question(), "missing question"),
        (edited(answer_mask=[True]), "answer_mask: got 1 values, expected "),
        (edited_turn(advantages=[0.5, 0.5]), "turn 2: advantages: got 2 values, expected "),
        (edited_turn(kept=[True]), "turn 2: kept: got 1 values"),
        (edited_turn(memory=[0, 10_000]), r"memory \[0, 10000\] is not a range within its"),
        (edited(reward=float("nan")), "contains NaN"),
    ],
)
def test_what_breaks_the_schema_is_refused_with_its_line(tmp_path: Path, record: Any, message: str) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(ValueError, match=message) as caught:
        list(read_traces(path))
    assert "traces.jsonl:1" in str(caught.value)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (edited(reward=float("inf")), "contains NaN or infinity"),
        (edited_turn(kept=[True]), "question 'films-0-0000', turn 2"),
    ],
)
def test_a_bad_episode_is_not_written(tmp_path: Path, record: Any, message: str) -> None:
    path = tmp_path / "traces.jsonl"
    with pytest.raises(ValueError, match=message):
        write_traces(path, [record])
    assert path.read_bytes() == b""
