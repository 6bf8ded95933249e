"""What cannot work is refused at the start, saying what was set, why it cannot hold and what to set."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.logging import get_logger
from datasets import Dataset, IterableDataset
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from trl import GRPOTrainer

from ..integrations.vllm_server import unreachable
from ..memory import encode_answer, find_memory_spans
from ..rollout.chat_format import OTHER_TEMPLATE
from ..rollout.loop import TurnLoop
from ..rollout.plain import PlainText
from ..rows import check_row
from ..text import escape
from ..types import Episode
from .config import MemPOConfig

logger = get_logger(__name__)


def refuse_combinations(
    args: MemPOConfig,
    model: Any,
    processing_class: Any,
    tools: Any,
    environment_factory: Any,
    rollout_func: Any,
    peft_config: Any = None,
) -> None:
    """Raises ValueError for arguments of the trainer that exclude each other."""
    if rollout_func is not None:
        raise ValueError(
            "rollout_func replaces the turn loop that MemPO trains with. Pass tools or environment_factory instead"
        )
    if not tools and environment_factory is None:
        raise ValueError(
            "MemPO trains agents with several turns: without tools every episode ends at its first one. Pass tools or "
            "environment_factory (see mempo_trl.tasks.search.SearchEnvironment)"
        )
    # With an adapter the reference is the model without it.
    if args.beta != 0 and peft_config is None and isinstance(model, PreTrainedModel) and not model.name_or_path:
        raise ValueError(
            f"beta={args.beta} needs a reference model, which is loaded again from where the model came from, and this "
            "one was built in code. Set beta=0, or save it and pass its folder"
        )
    if isinstance(processing_class, ProcessorMixin):
        raise ValueError(
            f"{type(processing_class).__name__} is a multimodal processor, and MemPO supports only text. Pass a "
            "tokenizer and a text model"
        )


def refuse_quantized(args: MemPOConfig, model: Any, quantization_config: Any, peft_config: Any) -> None:
    """Raises ValueError for a quantized base that cannot be trained, or not with this generation back end."""
    config = quantization_config or (args.model_init_kwargs or {}).get("quantization_config")
    bits = {
        bits: getattr(model, f"is_loaded_in_{bits}bit", False) or getattr(config, f"load_in_{bits}bit", False)
        for bits in (4, 8)
    }
    if (bits[4] or bits[8]) and peft_config is None and not isinstance(model, PeftModel):
        raise ValueError(
            "the weights of a quantized base cannot be trained. Pass peft_config (--use_peft) to train adapters on it, "
            "or load the model without load_in_4bit or load_in_8bit"
        )
    if args.use_vllm and bits[8]:
        raise ValueError("vLLM cannot serve an 8-bit base model. Load it in 4 bit, or set use_vllm=False")
    if args.use_vllm and bits[4] and args.vllm_mode == "server":
        raise ValueError(
            "a vLLM server cannot take the packed weights of a 4-bit base. Set vllm_mode='colocate' or use_vllm=False, "
            "or load the base in bf16"
        )


@contextmanager
def explain_start_errors(args: MemPOConfig, name: str, tokenizer: Any) -> Iterator[None]:
    """Inside, what TRL's trainer says about a chat template or a server is said with what to set."""
    try:
        yield
    except ValueError as error:
        if "chat template" not in str(error) or OTHER_TEMPLATE in str(error):
            raise
        raise ValueError(
            f"the chat template of {getattr(tokenizer, 'name_or_path', name)} cannot be used for turns "
            f"with tools: {error} Set {OTHER_TEMPLATE}, and pass the tokenizer as processing_class"
        ) from error
    except OSError as error:  # what requests raises is one
        if "vLLM server can't be reached" not in str(error):
            raise
        raise unreachable(args, name) from error


def check_dataset(dataset: Any, answers_column: str | None, name: str) -> None:
    """Raises ValueError if rows lack a conversational prompt or usable answers; a stream is checked as it comes.

    `answers_column` is None where no gold answers are needed.
    """
    if dataset is None:
        raise ValueError(f"{name} is missing: MemPO needs questions with gold answers")
    if isinstance(dataset, IterableDataset):
        return
    if not isinstance(dataset, Dataset):
        raise TypeError(f"{name} must be a datasets.Dataset, got {type(dataset).__name__}")
    for column in ("prompt", answers_column):
        if column is not None and column not in dataset.column_names:
            raise ValueError(
                f"{name} has no column {column!r}, only {', '.join(dataset.column_names)}. Each row needs 'prompt', a "
                "list of messages, and the gold answers, a list of strings, in the column that answers_column names. "
                "Without gold answers, set memory_weight=0"
            )
    if len(dataset) == 0:
        raise ValueError(f"{name} is empty")
    if not isinstance(dataset[0]["prompt"], list):
        raise ValueError(
            f"{name} has prompts of type {type(dataset[0]['prompt']).__name__}, but tools need a chat: set 'prompt' "
            'to a list of messages, [{"role": "user", "content": ...}]'
        )
    wanted = ("prompt", "aliases", answers_column)
    columns = [column for column in wanted if column and column in dataset.column_names]
    for number, row in enumerate(dataset.select_columns(columns)):
        check_row(row, f"row {number} of {name}", answers_column)


def check_prompts(trainer: GRPOTrainer, loop: TurnLoop, dataset: Any) -> None:
    """Raises ValueError if the loop's `context_tokens` cannot hold the longest prompt and what has to fit behind it.

    Args:
        trainer: renders the prompts.
        loop: of the trainer.
        dataset: its training questions; of a stream no prompt is known yet.
    """
    if loop.budget is None:
        return
    if not isinstance(dataset, Dataset):
        return loop.check_budget()
    longest = max(dataset["prompt"], key=lambda prompt: sum(len(message["content"] or "") for message in prompt))
    loop.check_budget(len(loop.chat.prompt_ids(longest, trainer.tools)))


def context_limit(lengths: Sequence[int | None], turn_length: int, context_tokens: int | None = None) -> int | None:
    """The length that a context must stay under, so that the longest turn fits behind it; None for no limit.

    Args:
        lengths: tokens that the model, the engine and the server hold; None where one says nothing.
        turn_length: of the longest turn.
        context_tokens: of "budget" context; None in another.

    Raises:
        ValueError: the budgets leave no room for a prompt, or for `context_tokens`.
    """
    longest = min((length for length in lengths if length), default=None)
    if context_tokens is not None:
        if longest is not None and context_tokens > longest:
            raise ValueError(
                f"context_tokens={context_tokens} is more than the {longest} tokens that the model or its server "
                f"holds. Set context_tokens={longest} or less"
            )
        longest = context_tokens
    limit = None if longest is None else longest - turn_length + 1
    if limit is not None and limit < 2:
        raise ValueError(
            f"max_turn_length={turn_length} leaves no room for a prompt: the model or its server holds {longest} "
            "tokens. Lower max_turn_length"
        )
    return limit


def check_tags(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ValueError if a memory that the model writes would not be found in the tokenizer's text."""
    ids = tokenizer.encode("<mem>a</mem>", add_special_tokens=False)
    if not find_memory_spans(tokenizer, ids, [1] * len(ids)):
        raise ValueError(
            f"{tokenizer.name_or_path or 'the tokenizer'} gives <mem>a</mem> back as {tokenizer.decode(ids)!r}, so no "
            "memory would be found. Make the tags tokens: tokenizer.add_tokens(['<mem>', '</mem>']), and resize the "
            "model's embeddings"
        )


def check_answer_tokens(answers: Sequence[str], tokenizer: PreTrainedTokenizerBase, where: str) -> None:
    """Raises ValueError for a gold answer that no policy can give, since it holds special tokens, or whose own tokens
    cannot be told from those around it."""
    for answer in answers:
        if not answer.isascii():  # the others are not composed or taken apart
            try:
                encode_answer(tokenizer, [answer])
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from error
    # Few answers hold a character that a special token could begin with: the others need not be encoded.
    suspicious = [answer for answer in answers if escape(answer) != answer]
    plain = PlainText(tokenizer) if suspicious else None
    for answer in suspicious:
        found = plain.special_in(answer) if plain else []
        if found:
            raise ValueError(
                f"{where}: the answer {answer!r} holds {found[0]!r}, a special token of the tokenizer, so the policy "
                "could never give it. Leave the row out, or write the answer without it"
            )


def check_datasets_answers(datasets: Mapping[str, Any], column: str | None, tokenizer: PreTrainedTokenizerBase) -> None:
    """`check_answer_tokens` for all rows; a stream is checked as it comes."""
    for name, dataset in datasets.items():
        if column is not None and isinstance(dataset, Dataset):
            for number, answers in enumerate(dataset[column]):
                check_answer_tokens(answers, tokenizer, f"row {number} of {name}")


def warn_if_truncated(episodes: Sequence[Episode], share: float = 0.9) -> None:
    """Warns once if nearly all episodes ran into a limit, which leaves no reward to learn from."""
    truncated = sum(episode.stop_reason == "truncated" for episode in episodes)
    if truncated >= share * len(episodes):
        logger.warning_once(
            "Nearly all episodes of a batch were truncated. Raise max_completion_length (the episode), "
            "max_turn_length (a turn) or the engine's context (context_tokens, in 'budget' context), or lower "
            "max_tool_length (a tool result)"
        )


def warn_without_memories(closed_fraction: float) -> None:
    """Warns once if no turn of a batch that could have one has a closed memory: nothing but the outcome is trained."""
    if closed_fraction == 0:
        logger.warning_once(
            "No episode of a batch wrote a memory after its first turn, so there is no memory to reward, and the step "
            "is one of plain GRPO. Train a cold start (mempo sft), or ask for <mem> blocks in the prompt, as "
            "mempo_trl.tasks.search.memory_instructions does. The metric memory/closed_fraction shows their share"
        )


def wanted_answers_column(args: MemPOConfig, scores_answers: bool, datasets: Iterable[Any]) -> str | None:
    """The column of the gold answers that memories are scored with; None if none is needed.

    With `memory_weight=0` memories are scored for the metrics alone, where all datasets have the column.
    """
    there = all(args.answers_column in (getattr(dataset, "column_names", None) or ()) for dataset in datasets)
    return args.answers_column if scores_answers and (args.memory_weight != 0 or there) else None


def is_policy(model: torch.nn.Module) -> bool:
    """Whether a forward is the policy's: TRL's reference can be the same model, without its adapter or with "ref"."""
    if not isinstance(model, PeftModel):
        return True
    return bool(model.get_model_status().enabled) and "ref" not in model.active_adapters
