"""The vLLM server of `vllm_mode="server"`: how much it holds, and what to do when it is not there."""

from typing import Any
from urllib.parse import urlparse

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object

from ..training.config import MemPOConfig
from .resume import last_checkpoint


def longest_context(args: MemPOConfig) -> int:
    """Most tokens that a turn and what it sees can have, without the prompt."""
    episode = args.max_completion_length or 0  # never None: MemPOConfig refuses that
    past = args.context_turns * (args.max_turn_length + args.max_tool_length)
    return episode if args.context == "full" else min(episode, past + args.max_turn_length)


def start_command(args: MemPOConfig, model: str, max_model_len: int | None = None) -> str:
    """The shell command that starts a server for this configuration."""
    length = max_model_len or args.vllm_max_model_length
    port = urlparse(args.vllm_server_base_url).port if args.vllm_server_base_url else args.vllm_server_port
    return (
        f"VLLM_SERVER_DEV_MODE=1 vllm serve {model} --port {port}{f' --max-model-len {length}' if length else ''} "
        """--weight-transfer-config '{"backend": "nccl"}' --logprobs-mode processed_logprobs --max-logprobs -1"""
    )


def samples_for_each(prompt_ids: list[list[int]], group_size: int) -> int:
    """
    How many completions to ask the server for with each prompt that is sent: `group_size`, or 1.

    TRL sends one prompt of each group, `group_size` times. That holds only if the group's prompts are equal, and they
    are not where an environment's `reset` gives each trajectory another text. Then every prompt is sent on its own.

    Args:
        prompt_ids: of this process. All processes have equally many, and take part.
        group_size: trajectories of a question; their prompts follow each other, and may reach over processes.
    """
    rows = gather_object(prompt_ids)
    alike = all(row == rows[index - index % group_size] for index, row in enumerate(rows))
    return group_size if alike else 1


def server_length(client: Any, accelerator: Accelerator, args: MemPOConfig, model: str) -> int:
    """
    Tokens that the server holds in one sequence (its `--max-model-len`), the same on every process.

    Args:
        client: TRL's `VLLMClient` on the main process.
        accelerator: of the trainer.
        args: of the trainer.
        model: name or path, for the message.

    Raises:
        ValueError: if a context of the configuration cannot fit.
    """
    found = [client.get_server_info()["model_config"]["max_model_len"] if accelerator.is_main_process else None]
    length = int(broadcast_object_list(found, from_process=0)[0])
    needed = max(longest_context(args) + 1, args.vllm_max_model_length or 0)
    if length < needed:
        raise ValueError(
            f"the vLLM server holds {length} tokens, but a context can have {needed} beside the rest of its prompt "
            f"(context={args.context!r}, max_completion_length={args.max_completion_length}, max_turn_length="
            f"{args.max_turn_length}, max_tool_length={args.max_tool_length}, vllm_max_model_length="
            f"{args.vllm_max_model_length}). Lower these, or start the server with room for the prompt as well, e.g.\n"
            f"{start_command(args, model, max_model_len=2 * needed)}"
        )
    return length


def unreachable(args: MemPOConfig, model: str, step: int | None = None) -> ConnectionError:
    """The error for a server that does not answer: at the start, or in mid-run, at optimizer step `step`."""
    address = args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"
    when = "does not answer" if step is None else f"stopped answering at step {step}"
    message = f"the vLLM server at {address} {when}. Start it:\n{start_command(args, model)}"
    if step is not None:
        checkpoint = last_checkpoint(args.output_dir)
        message += (
            f"\nand go on from {checkpoint} with resume_from_checkpoint=True"
            if checkpoint
            else "\nThe run has no checkpoint to go on from yet; save_strategy and save_steps say when it has"
        )
    return ConnectionError(message)
