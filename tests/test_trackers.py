"""Experiment trackers without a network: what a run logs is read back from their files."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import make_trainer

SCALARS = {"train/reward", "train/loss", "train/memory/reward_mean", "train/rollout/turns"}
COLUMNS = {"prompt", "completion", "answer_reward", "advantage", "stop_reason", "memory_rewards"}


def train(tmp_path, model, tokenizer, questions, tracker):
    trainer = make_trainer(
        tmp_path / "out", model, tokenizer, questions, max_steps=2, report_to=[tracker], run_name="two steps",
        log_completions=True,
    )  # fmt: skip
    trainer.train()
    return [log for log in trainer.state.log_history if "reward" in log]


def check_table(rows):
    assert len(rows) == 8
    for row in rows:
        assert row.keys() >= COLUMNS
        assert len(row["memory_rewards"].split(", ")) == max(len(r["memory_rewards"].split(", ")) for r in rows)
        assert all(message.keys() == {"role", "content"} for message in row["completion"])
    assert any(message["role"] == "tool" for row in rows for message in row["completion"])


def blocks(data):
    """The records of a wandb file: LevelDB's log format, blocks of 32 KiB, after a header of 7 bytes."""
    position, record = 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def test_wandb_offline(tmp_path, model, tokenizer, questions, monkeypatch):
    wandb = pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    logs = train(tmp_path, model, tokenizer, questions, "wandb")
    wandb.finish()
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    (file,) = run.glob("*.wandb")
    records = [Record.FromString(data) for data in blocks(file.read_bytes())]
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    scalars = [row for row in rows if row.keys() >= SCALARS]
    assert [row["train/reward"] for row in scalars] == pytest.approx([log["reward"] for log in logs])
    assert [row["train/global_step"] for row in scalars] == [1, 2]
    paths = [row["completions/path"] for row in rows if "completions/path" in row]
    table = json.loads((run / "files" / paths[0]).read_text())
    check_table([dict(zip(table["columns"], row, strict=True)) for row in table["data"]])


def test_trackio(tmp_path):
    """In a process of its own: trackio reads at its import where it keeps its runs."""
    pytest.importorskip("trackio")
    code = (
        "import sys; from pathlib import Path; from test_trackers import train; from conftest import *\n"
        "rows = [{'prompt': [{'role': 'user', 'content': f'A{i}?'}], 'answers': ['Lima']} for i in range(4)]\n"
        "tokenizer = build_tokenizer()\n"
        "model = build_model(len(tokenizer))\n"
        "logs = train(Path(sys.argv[1]), model, tokenizer, Dataset.from_list(rows), 'trackio')\n"
        "print([log['reward'] for log in logs])\n"
    )
    env = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "PYTHONPATH": str(Path(__file__).parent)}
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=env, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr[-3000:]
    (database,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(database) as connection:
        rows = [json.loads(metrics) for (metrics,) in connection.execute("SELECT metrics FROM metrics ORDER BY id")]
    scalars = [row for row in rows if row.keys() >= SCALARS]
    assert [row["train/reward"] for row in scalars] == pytest.approx(json.loads(result.stdout.splitlines()[-1]))
    check_table(next(row["completions"]["_value"] for row in rows if "completions" in row))
