import pytest

from helpers import make_trainer
from mempo_trl.memory.turns import find_turns
from mempo_trl.traces.file import read_traces
from mempo_trl.training.callbacks import TraceCallback


def test_traces_hold_what_was_trained_on(tmp_path, model, tokenizer, questions):
    trainer = make_trainer(tmp_path, model, tokenizer, questions, max_steps=2, num_iterations=2)
    trainer.add_callback(TraceCallback(trainer, tmp_path / "traces.jsonl"))
    trainer.train()
    traces = list(read_traces(tmp_path / "traces.jsonl"))  # checks the schema
    assert len(traces) == 8  # one generation batch, used twice, is written once
    record = trainer.last_rollout
    for row, (trace, episode) in enumerate(zip(traces, record.episodes, strict=True)):
        assert trace["stop_reason"] == episode.stop_reason
        assert [tool["function"]["name"] for tool in trace["tools"]] == list(episode.tools)
        assert trace["reward"] == pytest.approx(sum(values[row].item() for values in record.rewards.values()))
        spans = find_turns(episode.mask)
        assert len(trace["turns"]) == len(spans)
        for turn, (start, end) in zip(trace["turns"], spans, strict=True):
            assert turn["advantages"] == record.advantages[row, start:end].tolist()
            assert len(turn["tokens"]) == end - start
            if turn["memory"] is not None:
                first, last = turn["memory"]
                assert "<mem>" in "".join(turn["tokens"][first:last])
    judged = [turn for trace in traces for turn in trace["turns"] if turn["memory_reward"] is not None]
    assert len(judged) == len(record.memories.scored) > 0
    for turn in judged:
        assert turn["memory_reward"] == pytest.approx(turn["p_mem"] - turn["p_baseline"], abs=1e-6)


def test_only_so_many_and_so_often(tmp_path, model, tokenizer, questions):
    trainer = make_trainer(tmp_path, model, tokenizer, questions, max_steps=3)
    trainer.add_callback(TraceCallback(trainer, tmp_path / "traces.jsonl", every=2, episodes=3))
    trainer.add_callback(TraceCallback(trainer, tmp_path / "none.jsonl", every=0))
    trainer.train()
    assert [trace["step"] for trace in read_traces(tmp_path / "traces.jsonl")] == [2, 2, 2]
    assert not (tmp_path / "none.jsonl").exists()
