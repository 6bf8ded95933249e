import pytest
from trl import TrlParser

from mempo_trl import MemPOConfig


def make(**options):
    return MemPOConfig(output_dir="out", use_cpu=True, **options)


def test_defaults_hold_together():
    config = make()
    assert config.generation_batch_size == config.num_generations == 16
    assert config.importance_sampling_level == "token"
    assert config.use_bias_correction_kl is False
    assert (config.context, config.context_turns, config.memory_baseline) == ("memory", 1, "history")
    assert config.vllm_importance_sampling_mode == "token_truncate"
    assert (config.memory_threshold, config.memory_threshold_mode, config.memory_weight) == (0.5, "either", 1.0)


def test_every_option_has_help():
    for name, field in MemPOConfig.__dataclass_fields__.items():
        if name in MemPOConfig.__annotations__:
            assert field.metadata.get("help"), name


def test_command_line_and_yaml(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("output_dir: out\nuse_cpu: true\ncontext: memory\nmemory_threshold: null\nmemory_weight: 0.3\n")
    (config,) = TrlParser((MemPOConfig,)).parse_args_and_config(["--config", str(path), "--max_turns", "4"])
    assert (config.context, config.memory_threshold, config.memory_weight, config.max_turns) == ("memory", None, 0.3, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": "short"}, "context='short' is unknown. Set one of full, memory"),
        ({"memory_threshold_mode": "all"}, "Set one of independent, either, both"),
        ({"memory_pool": "batch"}, "Set one of group, turn"),
        ({"memory_baseline": "x"}, "Set one of history, visible, none"),
        ({"memory_scoring": "x"}, "memory_scoring='x' is unknown"),
        ({"memory_threshold": 1.0}, r"memory_threshold must be in \[0, 1\), or None"),
        ({"memory_threshold": -0.1}, r"memory_threshold must be in \[0, 1\), or None"),
        ({"memory_std_floor": -1.0}, "memory_std_floor must be 0 or more, got -1.0"),
        ({"context_turns": 0}, "context_turns must be at least 1, got 0"),
        ({"max_turns": 0}, "max_turns must be at least 1, got 0"),
        ({"tool_concurrency": 0}, "tool_concurrency must be at least 1, got 0"),
        ({"memory_scoring_tokens": 0}, "memory_scoring_tokens must be at least 1, got 0"),
        ({"tool_timeout": 0.0}, "tool_timeout must be more than 0, or None for no limit: got 0.0"),
        ({"answer_template": "x"}, "exactly once"),
        ({"max_completion_length": None}, "max_completion_length=None"),
        ({"importance_sampling_level": "sequence"}, "Set importance_sampling_level='token', or memory_weight=0"),
        ({"off_policy_mask_threshold": 0.5}, "Set off_policy_mask_threshold=None, or memory_weight=0"),
        ({"remove_unused_columns": True}, "removes the column 'answers'"),
        ({"max_tool_calling_iterations": 3}, "Set max_turns"),
        ({"per_device_train_batch_size": 12, "num_generations": 8}, "Set generation_batch_size=8 or 16"),
        ({"per_device_train_batch_size": 3, "num_generations": 8}, "Set generation_batch_size=8,"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_set(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_sequence_level_is_grpo_s_to_use():
    options = {"importance_sampling_level": "sequence", "off_policy_mask_threshold": 0.5}
    assert make(memory_weight=0.0, **options).memory_weight == 0


def test_a_turn_fits_in_its_episode():
    assert make(max_completion_length=100).max_turn_length == 100
