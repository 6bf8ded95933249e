"""What is relied on of TRL, in one table, and the check of the installed version against it."""

import inspect
import re
from importlib import import_module
from importlib.metadata import version
from typing import Any

import trl
from accelerate.logging import get_logger
from packaging.version import Version
from trl import GRPOTrainer

logger = get_logger(__name__)

TRL_VERSIONS = "trl>=1.16,<2"
TESTED = ("1.16.0", "1.16.0")
"""The oldest and the newest version that the tests run with."""

# The hooks of GRPOTrainer that are overridden or called, with the parameters that are relied on.
HOOKS = {
    "_generate_single_turn": ["prompt_ids", "images", "multimodal_fields", "num_generations"],
    "_generate": ["prompts"],
    "_tool_call_loop": [
        "prompts", "prompt_ids", "completion_ids", "completions", "logprobs", "images", "multimodal_fields",
    ],
    "_calculate_rewards": ["inputs", "prompts", "completions", "completion_ids_list"],
    "_generate_and_score_completions": ["inputs"],
    "_get_per_token_logps_and_entropies": [
        "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy",
    ],
    "_compute_loss": ["model", "inputs"],
    "_get_train_sampler": ["dataset"],
    "_log_metric": ["name", "value"],
    "_log_completion_extra": ["column", "values"],
    "_save": ["output_dir", "state_dict"],
    "_save_checkpoint": ["model", "trial"],
    "_save_rng_state": ["output_dir"],
    "_load_optimizer_and_scheduler": ["checkpoint"],
    "_get_output_dir": ["trial"],
    "create_model_card": ["model_name", "dataset_name", "tags"],
}  # fmt: skip

# What the constructor is called with, by keyword.
ARGUMENTS = (
    "model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class", "reward_processing_classes",
    "callbacks", "optimizers", "quantization_config", "peft_config", "tools", "rollout_func", "environment_factory",
)  # fmt: skip

# The attributes of GRPOTrainer that are read or set: they have to be in its source.
ATTRIBUTES = (
    "_async_tool_dicts", "_environment_pool", "_has_async_funcs", "_is_vlm", "_logs", "_metrics", "_step",
    "_sync_tool_dicts", "_tokenizer", "async_loop", "environment_factories", "environments", "eos_token_ids",
    "generation_config", "generation_kwargs", "mask_truncated_completions", "num_generations_eval", "reward_func_names",
    "reward_weights", "temperature", "use_vllm", "vllm_generation", "vllm_mode",
)  # fmt: skip

# What `_generate_and_score_completions` gives to the loss, as far as it is changed here.
OUTPUT = ("advantages", "completion_ids", "completion_mask", "num_items_in_batch", "tool_mask")

# What is imported beside the classes that `trl` itself exports.
MODULES = {
    "trl.chat_template_utils": (
        "add_response_schema", "get_training_chat_template", "is_chat_template_prefix_preserving",
        "qwen2_5_chat_template", "supports_tool_calling",
    ),
    "trl.trainer.utils": ("add_fused_lm_head",),  # packed rows are forwarded with it
}  # fmt: skip


def check_trl(trainer_class: type = GRPOTrainer) -> None:
    """Compares the installed TRL with the table.

    A version that is newer than those of the tests, and whose table matches, is used with a warning.

    Raises:
        ImportError: something that is relied on is not there, or has other parameters.
    """
    found = mismatches(trainer_class)
    if found:
        raise ImportError(
            f"MemPOTrainer cannot extend TRL {trl.__version__} on transformers {version('transformers')}: "
            f"{'; '.join(found)}. Install a version that it was tested with: pip install 'trl=={TESTED[-1]}'"
        )
    if Version(trl.__version__) > Version(TESTED[-1]):
        logger.warning_once(
            f"TRL {trl.__version__} is newer than {TESTED[-1]}, the newest that this mempo-trl was tested with. "
            "Everything that is relied on is there, so training starts"
        )


def mismatches(trainer_class: type = GRPOTrainer) -> list[str]:
    """What the table says and the installed TRL does not have."""
    found = []
    if Version(trl.__version__) < Version(TESTED[0]):
        found.append(f"it is older than {TESTED[0]}, the oldest whose log-probs can be computed on any device")
    for name, expected in HOOKS.items():
        hook = getattr(trainer_class, name, None)
        parameters = [] if hook is None else list(inspect.signature(hook).parameters)[1:]
        if hook is None:
            found.append(f"{trainer_class.__name__} has no {name}")
        elif parameters[: len(expected)] != expected:
            found.append(
                f"{trainer_class.__name__}.{name} takes ({', '.join(parameters)}), expected ({', '.join(expected)})"
            )
    found += [f"{trainer_class.__name__} takes no {name}" for name in ARGUMENTS if not _takes(trainer_class, name)]
    source = inspect.getsource(import_module("trl.trainer.grpo_trainer"))
    found += [f"GRPOTrainer has no {name}" for name in ATTRIBUTES if not re.search(rf"\bself\.{name}\b", source)]
    found += [f"GRPOTrainer gives the loss no {name}" for name in OUTPUT if f'"{name}"' not in source]
    for module, names in MODULES.items():
        found += [f"{module} has no {name}" for name in names if not hasattr(import_module(module), name)]
    return found


def _takes(trainer_class: Any, name: str) -> bool:
    parameters = inspect.signature(trainer_class.__init__).parameters
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
