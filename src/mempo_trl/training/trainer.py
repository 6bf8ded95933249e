"""`MemPOTrainer`: GRPO with a second advantage on the tokens of each memory."""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict
from peft import PeftConfig, PeftModel
from torch import Tensor
from torch.nn.functional import pad
from transformers import (
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    TrainerCallback,
)

from ..integrations.hub import HubTrainer
from ..integrations.quantized import keep_differentiable
from ..integrations.resume import ResumableTrainer
from ..integrations.vllm_server import server_length, unreachable
from ..memory import encode_answer
from ..memory.advantages import token_advantages
from ..memory.scored import ScoredMemories
from ..memory.scoring.engine import AnswerScorer
from ..memory.scoring.shared import CompletionLogps
from ..rows import check_row
from ..types import Episode, Message
from .advice import AdviceCallback
from .arguments import refuse_kinds
from .batch import GenerationBatch, plain_messages
from .by_turn import visible_starts
from .checks import (
    check_answer_tokens,
    check_dataset,
    check_datasets_answers,
    check_prompts,
    context_limit,
    explain_start_errors,
    is_policy,
    refuse_combinations,
    refuse_quantized,
    wanted_answers_column,
    warn_if_truncated,
)
from .compat import check_trl
from .config import MemPOConfig
from .episodes import EpisodeTrainer
from .logps import LogProbs, TurnLogps
from .memory_functions import MemoryRewardFunc, MemoryRewards
from .metrics import episode_metrics, forward_cost, masked_fraction
from .model_checks import check_model, refuse_virtual_tokens
from .packed import fused_log_probs
from .questions import QuestionTrainer
from .scoring import group_advantages, reward_memories, score_batch

if TYPE_CHECKING:
    from trl.trainer.grpo_trainer import EnvironmentFactory, RewardFunc, RolloutFunc


class MemPOTrainer(ResumableTrainer, HubTrainer, QuestionTrainer, EpisodeTrainer):
    """
    Trainer for Self-Memory Policy Optimization (MemPO, https://huggingface.co/papers/2603.00680).

    An agent writes a `<mem>` block at the start of each turn. MemPO rewards each block by how much more likely it makes
    the gold answer, and adds that, normalised within a question's group, to the advantage of the block's own tokens.

    What is overridden of [`~trl.GRPOTrainer`], all of it:

    - `_generate_single_turn`: a prompt that the engine cannot hold ends its episode, not the run;
    - `_tool_call_loop` plays the episode with `rollout.loop.TurnLoop`: budgets for turn and episode, concurrent tools,
      equal work on all ranks, and the context that `args.context` asks for;
    - `_calculate_rewards` also scores the memories;
    - `_generate_and_score_completions` turns the advantages from (B,) into (B, C), with the memory's on its tokens, and
      adds `visible_start` (B, C) to what the loss gets: where each token's context starts;
    - `_compute_loss` and `_get_per_token_logps_and_entropies`: a token's log-prob is the one under what was visible
      when it was sampled.

    The loss, its clipping, KL, masks and normalisers, vLLM, PEFT, logging, checkpoints and the Hub are inherited;
    `EpisodeTrainer` adapts TRL where it speaks of completions and an episode is meant, `QuestionTrainer` adds a
    curriculum and draws tied groups again, `ResumableTrainer` adds to a
    checkpoint what a resumed run needs to continue as if it had never stopped, `HubTrainer` adds the run to its model
    card and keeps failed uploads from ending it.

    The arguments are those of [`~trl.GRPOTrainer`], with `args` a [`MemPOConfig`], `tools` or `environment_factory`
    required, a dataset with the columns `prompt` (messages) and, for the default memory reward, `answers` (a list of
    strings), and:

    Args:
        memory_reward_funcs: what a memory is worth: functions (see `training.memory_functions`), or
            `"answer_likelihood"` for the paper's reward, which is the default. They are weighted by
            `args.memory_reward_weights`.

    `last_rollout` is the last generation batch of this rank, a `GenerationBatch`.
    """

    _tag_names = ["trl", "mempo"]
    _name = "MemPO"
    _paper = {
        "title": "MemPO: Self-Memory Policy Optimization for Long-Horizon Agents",
        "id": "2603.00680",
        # docstyle-ignore
        "citation": textwrap.dedent("""\
            @inproceedings{li-etal-2026-mempo,
                title     = {{MemPO: Self-Memory Policy Optimization for Long-Horizon Agents}},
                author    = {Ruoran Li and Xinghua Zhang and Haiyang Yu and Shitong Duan and Xiang Li and Wenxin Xiang and Chonghua Liao and Xudong Guo and Yongbin Li and Jinli Suo},
                booktitle = {Findings of the Association for Computational Linguistics: ACL 2026},
                year      = 2026,
                eprint    = {arXiv:2603.00680},
            }"""),  # noqa: E501
    }

    def __init__(
        self,
        model: str | PreTrainedModel | PeftModel,
        reward_funcs: "RewardFunc | list[RewardFunc] | None" = None,
        args: MemPOConfig | None = None,
        train_dataset: Dataset | IterableDataset | None = None,
        eval_dataset: Dataset
        | IterableDataset
        | DatasetDict
        | IterableDatasetDict
        | dict[str, Dataset | IterableDataset]
        | None = None,
        processing_class: PreTrainedTokenizerBase | ProcessorMixin | None = None,
        reward_processing_classes: PreTrainedTokenizerBase | list[PreTrainedTokenizerBase] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
        quantization_config: BitsAndBytesConfig | None = None,
        peft_config: PeftConfig | None = None,
        tools: list[Callable[..., Any]] | None = None,
        rollout_func: "RolloutFunc | None" = None,
        environment_factory: "EnvironmentFactory | dict[str, EnvironmentFactory] | None" = None,
        memory_reward_funcs: MemoryRewardFunc | str | Sequence[MemoryRewardFunc | str] | None = None,
    ) -> None:
        check_trl()
        name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", "")
        args = args or MemPOConfig(f"{name.split('/')[-1]}-MemPO")
        refuse_kinds(args, tools, environment_factory)
        self._memory_rewards = MemoryRewards(memory_reward_funcs, args.memory_reward_weights)
        refuse_combinations(args, model, processing_class, tools, environment_factory, rollout_func, peft_config)
        refuse_quantized(args, model, quantization_config, peft_config)
        refuse_virtual_tokens(model, peft_config)
        splits = eval_dataset if isinstance(eval_dataset, dict) else {"eval_dataset": eval_dataset}
        datasets = {"train_dataset": train_dataset, **({} if eval_dataset is None else splits)}
        self._answers_column = wanted_answers_column(args, self._memory_rewards.needs_answers, datasets.values())
        for split_name, split in datasets.items():
            check_dataset(split, self._answers_column, split_name)
        arguments = {  # by keyword: a class that replaces TRL's may have another order
            "model": model, "reward_funcs": reward_funcs, "args": args, "train_dataset": train_dataset,
            "eval_dataset": eval_dataset, "processing_class": processing_class,
            "reward_processing_classes": reward_processing_classes, "callbacks": callbacks, "optimizers": optimizers,
            "quantization_config": quantization_config, "peft_config": peft_config, "tools": tools,
            "rollout_func": rollout_func, "environment_factory": environment_factory,
        }  # fmt: skip
        with explain_start_errors(args, name, processing_class):
            super().__init__(**arguments)
        if self._is_vlm:
            raise ValueError("MemPO supports only text: pass a tokenizer as processing_class, and a text model")
        self.add_callback(AdviceCallback(args.memory_weight))
        keep_differentiable(self.model)
        if not (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            check_model(self.model, self._tokenizer, self.temperature, self.accelerator.autocast)
        check_datasets_answers(datasets, self._answers_column, self._tokenizer)
        self._batch = GenerationBatch([], ready=True)
        self._engine_limit = self._limit_turns(args.max_turn_length)
        check_prompts(self, self._turn_loop(), train_dataset)
        self._visible: Tensor | None = None  # of the forward that is being made, see `_seen_as`
        self._score_answers = AnswerScorer(self.model, args.memory_scoring)
        self._turn_logps = TurnLogps(
            self.model, args.logps, args.logps_max_tokens, self._tokenizer.pad_token_id, equalize=self._max_over_ranks,
            autocast=self.accelerator.autocast, count=self._count_forwarded,
            sharded=self.is_fsdp_enabled or self.is_deepspeed_enabled,
        )  # fmt: skip

    def _limit_turns(self, tokens: int) -> int | None:
        """Bounds what one call generates to a turn; returns the length that a turn's context must stay under."""
        lengths = [getattr(self.model.config.get_text_config(), "max_position_embeddings", None)]
        if self.use_vllm:
            self.vllm_generation.max_completion_length = tokens
            lengths.append(self.args.vllm_max_model_length)
            if self.vllm_mode == "server":
                client = getattr(self.vllm_generation, "vllm_client", None)
                lengths.append(server_length(client, self.accelerator, self.args, self.model.name_or_path))
        else:
            self.generation_config.max_new_tokens = self.generation_kwargs["max_new_tokens"] = tokens
        return context_limit(lengths, tokens, self.args.context_tokens)

    @property
    def last_rollout(self) -> GenerationBatch | None:
        """The last generation batch of this rank; None before the first."""
        return self._batch if self._batch.rows and self._batch.ready else None

    # Generation: the turn loop

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        # A context that the engine cannot hold is cut short here; `_tool_call_loop` ends its episode.
        fitting = [ids if self._fits(ids) else ids[:1] for ids in prompt_ids]
        try:
            turns, logprobs = super()._generate_single_turn(fitting, *args, **kwargs)
        except OSError as error:  # what requests raises is one; a response means that the server is there
            if not self.use_vllm or getattr(error, "response", None) is not None:
                raise
            raise unreachable(self.args, self.model.name_or_path, self.state.global_step) from error
        for row, ids in enumerate(turns):
            if not ids:  # TRL cannot train on an empty completion
                turns[row] = [self.eos_token_ids[0]]
                if logprobs is not None:
                    logprobs[row] = [0.0]
        return turns, logprobs

    def _fits(self, ids: list[int]) -> bool:
        return self._engine_limit is None or len(ids) < self._engine_limit

    def _tool_call_loop(
        self,
        prompts: list[list[Message]],
        prompt_ids: list[list[int]],
        completion_ids: list[list[int]],
        completions: list[list[Message]],
        logprobs: list[list[float]] | None,
        images: Sequence[Any] | None,
        multimodal_fields: Mapping[str, Any],
    ) -> tuple[Any, ...]:
        loop, batch = self._turn_loop(), self._batch
        environments = self.environments or [None] * len(prompt_ids)
        for row, (ids, environment) in enumerate(zip(prompt_ids, environments, strict=True)):
            tools = {**self._sync_tool_dicts[row], **self._async_tool_dicts[row]}
            episode = Episode(prompts[row], tools, environment, batch.rows[row], ids)
            turn, turn_logprobs = completion_ids[row], None if logprobs is None else logprobs[row]
            if not self._fits(ids):  # nothing was sampled from this prompt
                turn, turn_logprobs = [self.eos_token_ids[0]], None if logprobs is None else [0.0]
            loop.add_turn(episode, ids, turn, turn_logprobs)
            if not self._fits(ids):
                episode.stop_reason = "truncated"
            batch.episodes.append(episode)
        episodes = loop.run(batch.episodes)
        warn_if_truncated(episodes)
        batch.visible = visible_starts(episodes, self.accelerator.device)
        return (
            [episode.mask for episode in episodes],
            [episode.messages for episode in episodes],
            [episode.completion_ids for episode in episodes],
            None if logprobs is None else [episode.logprobs for episode in episodes],
            sum(episode.tool_calls for episode in episodes),
            sum(episode.tool_failures for episode in episodes),
            [[] for _ in episodes],
        )

    # Reward hook: what the memories are worth

    def _calculate_rewards(
        self,
        inputs: list[dict[str, Any]],
        prompts: list[list[Message]],
        completions: list[list[Message]],
        completion_ids_list: list[list[int]],
    ) -> Tensor:
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)  # (N, functions)
        batch = self._batch
        first = self.accelerator.process_index * len(inputs)
        mine = rewards[first : first + len(inputs)]
        batch.rewards = dict(zip(self.reward_func_names, mine.T, strict=True))
        batch.total_rewards = (mine * self.reward_weights.to(mine.device)).nansum(dim=1)
        batch.memories = memories = batch.memories or self._score_memories(batch)
        reward_memories(batch, memories, self._memory_rewards)
        self._log_completion_extra("stop_reason", [episode.stop_reason for episode in batch.episodes])
        texts = [", ".join(f"{reward:.3g}" for reward in row) for row in memories.rewards.tolist()]
        self._log_completion_extra("memory_rewards", texts)
        for name, values in episode_metrics(batch.episodes, memories, batch.memory_rewards, self.args.context).items():
            for value in values:
                self._log_metric(name, value)
        return rewards

    def _score_memories(self, batch: GenerationBatch, completions: CompletionLogps | None = None) -> ScoredMemories:
        score = partial(
            self._score_answers,
            self.model,
            pad_token_id=self._tokenizer.pad_token_id,
            max_tokens=self.args.memory_scoring_tokens,
            equalize=self._max_over_ranks,
            completions=completions,
        )
        with self.accelerator.autocast():
            return score_batch(batch, self._tokenizer, self.args, score, self.accelerator.device)

    # Advantage hook: from (B,) to (B, C)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = self._batch = GenerationBatch(inputs)
        column = self._answers_column
        if column is not None:
            golds = [check_row(row, f"the row of question {row.get('question_id')!r}", column) for row in inputs]
            check_answer_tokens([answer for gold in golds for answer in gold], self._tokenizer, "a row of the dataset")
            batch.answers = [encode_answer(self._tokenizer, gold, self.args.answer_template) for gold in golds]
        mode = "train" if self.model.training else "eval"
        output = super()._generate_and_score_completions(inputs)
        batch = self._batch  # the last one that was drawn
        logged = self._logs["completion"]
        for row in range(len(logged)):
            logged[row] = plain_messages(logged[row])
        width = output["completion_ids"].size(1)
        output["visible_start"] = pad(batch.visible, (0, width - batch.visible.size(1)), value=-1)
        if "importance_sampling_ratio" in output:
            dropped = masked_fraction(output["importance_sampling_ratio"], output["visible_start"] >= 0)
            self._metrics[mode]["sampling/masked_fraction"].append(self.accelerator.gather(dropped).mean().item())
        batch.outcome_advantages = output["advantages"]  # (B,)
        assert batch.memories is not None
        group_size = self.num_generations if mode == "train" else self.num_generations_eval
        batch.memory_advantages, metrics = group_advantages(
            batch, batch.memories, self.args, group_size, self.accelerator
        )
        for name, value in metrics.items():
            self._metrics[mode][name].append(value)
        output["advantages"] = batch.advantages = token_advantages(
            batch.outcome_advantages, self.args.memory_weight * batch.memory_advantages, batch.memories.spans, width
        )
        batch.ready = True
        return output

    # Log-probs: old ones from the pass that scores the answers, all of them under the visible context

    def _compute_loss(self, model: PreTrainedModel, inputs: dict[str, Any]) -> Tensor:
        with self._seen_as(inputs.get("visible_start")):
            return super()._compute_loss(model, inputs)

    @contextmanager
    def _seen_as(self, visible: Tensor | None) -> Iterator[None]:
        """Inside, forwards are of trajectories with these `visible_starts`; None: each token saw all before it."""
        before, self._visible = self._visible, visible
        try:
            yield
        finally:
            self._visible = before

    def _get_per_token_logps_and_entropies(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> LogProbs:
        visible = self._visible
        if self._is_generating(input_ids):
            old = self._old_logps(model, logits_to_keep)
            if old is not None:
                return old, None, None
            visible = self._batch.visible
        forward = partial(super()._get_per_token_logps_and_entropies, **kwargs)
        return self._turn_logps(forward, model, input_ids, attention_mask, logits_to_keep, batch_size, visible)

    def _is_generating(self, input_ids: Tensor) -> bool:
        """Whether TRL asks for log-probs of the generation batch while it is being made, and not for a loss's."""
        during = self._visible is None and not torch.is_grad_enabled() and not self._batch.ready
        return during and len(input_ids) == len(self._batch.visible)

    def _old_logps(self, model: PreTrainedModel, width: int) -> Tensor | None:
        """Log-probs of the generation batch from the pass that scores its answers; None if that pass does not give
        them: they are the policy's, at temperature 1, in "full" context, by the shared engine. Shape: (B, width)."""
        batch, full = self._batch, self.args.context == "full"
        if model is not self.model or not is_policy(self.accelerator.unwrap_model(model)):
            return None
        if not (full and self.temperature == 1 and self._score_answers.shared and batch.answers is not None):
            return None
        if batch.memories is None:
            completions = CompletionLogps(fused_log_probs)
            batch.memories = self._score_memories(batch, completions)
            batch.old_logps = completions.rows
        if not batch.old_logps:
            return None
        logps = CompletionLogps(fused_log_probs, batch.old_logps).padded(width)
        return logps.masked_fill(pad(batch.visible, (0, width - batch.visible.size(1)), value=-1) < 0, 0.0)

    def _count_forwarded(self, tokens: int) -> None:
        """Logs what a training forward costs."""
        if not torch.is_grad_enabled():
            return
        for name, value in forward_cost(tokens, self.accelerator).items():
            self._metrics["train"][name].append(value)
