"""`MemPOTrainer`: GRPO with a second advantage on the tokens of each memory."""

import textwrap
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from trl import GRPOTrainer
from trl.trainer.utils import get_config_model_id

from ..integrations.hub import HubTrainer
from ..integrations.quantized import keep_differentiable
from ..integrations.resume import ResumableTrainer
from ..integrations.vllm_server import server_length, unreachable
from ..memory import encode_answer, find_memory_spans
from ..memory.advantages import memory_advantages, token_advantages
from ..memory.scored import JudgedMemories, judge_memories
from ..memory.scoring.engine import AnswerScorer
from ..memory.scoring.shared import CompletionLogps
from ..memory.turns import find_turns
from ..rollout.context import visible_start
from ..rollout.loop import Episode, TurnLimits, TurnLoop
from ..rows import check_row
from .by_turn import forward_by_turn, is_single_turn
from .checks import (
    check_dataset,
    check_tags,
    check_trl,
    refuse_combinations,
    refuse_quantized,
    warn_if_truncated,
)
from .config import MemPOConfig
from .metrics import episode_metrics, masked_fraction, memory_metrics
from .packed import fused_log_probs
from .record import RolloutRecord, plain_messages


class MemPOTrainer(ResumableTrainer, HubTrainer, GRPOTrainer):
    """
    Trainer for Self-Memory Policy Optimization (MemPO, https://huggingface.co/papers/2603.00680).

    An agent writes a `<mem>` block at the start of each turn. MemPO rewards each block by how much more likely it makes
    the gold answer, and adds that, normalised within a question's group, to the advantage of the block's own tokens.

    What changes from [`~trl.GRPOTrainer`]:

    - `_tool_call_loop` plays the episode with `rollout.loop.TurnLoop`: budgets for turn and episode, concurrent tools,
      equal work on all ranks, and the context that `args.context` asks for;
    - `_calculate_rewards` also judges the memories; `_generate_and_score_completions` turns the advantages from (B,)
      into (B, C), with the memory's on its tokens;
    - `_get_per_token_logps_and_entropies` gives a token's log-prob under what was visible when it was sampled, in
      `context="memory"`.

    The loss, its clipping, KL, masks and normalisers, vLLM, PEFT, logging, checkpoints and the Hub are inherited;
    `ResumableTrainer` adds to a checkpoint what a resumed run needs to go on as if it had never stopped, `HubTrainer`
    adds the run to its model card and keeps failed uploads from ending it.

    The arguments are those of [`~trl.GRPOTrainer`], with `args` a [`MemPOConfig`], `tools` or `environment_factory`
    required, and a dataset with the columns `prompt` (messages) and `answers` (a list of strings).
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
        model: Any,
        reward_funcs: Any = None,
        args: MemPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: Any = None,
        optimizers: Any = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: Any = None,
        rollout_func: Any = None,
        environment_factory: Any = None,
    ) -> None:
        check_trl()
        if args is None:
            name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = MemPOConfig(f"{name.split('/')[-1]}-MemPO")
        refuse_combinations(args, model, processing_class, tools, environment_factory, rollout_func, peft_config)
        refuse_quantized(args, model, quantization_config, peft_config)
        check_dataset(train_dataset, args.answers_column, "train_dataset")
        if eval_dataset is not None:
            splits = eval_dataset if isinstance(eval_dataset, dict) else {"eval_dataset": eval_dataset}
            for name, split in splits.items():
                check_dataset(split, args.answers_column, name)
        try:
            super().__init__(
                model, reward_funcs, args, train_dataset, eval_dataset, processing_class, reward_processing_classes,
                callbacks, optimizers, quantization_config, peft_config, tools, rollout_func, environment_factory,
            )  # fmt: skip
        except ValueError as error:
            if "chat template" not in str(error):
                raise
            raise ValueError(
                f"the chat template of {getattr(processing_class, 'name_or_path', model)} cannot be used for turns "
                f"with tools: {error} Set tokenizer.chat_template to one that renders earlier messages the same "
                "whatever follows, e.g. trl.chat_template_utils.qwen2_5_training_chat_template"
            ) from error
        except OSError as error:  # what requests raises is one
            if "vLLM server can't be reached" not in str(error):
                raise
            name = model if isinstance(model, str) else get_config_model_id(model.config)
            raise unreachable(args, name) from error
        if self._is_vlm:
            raise ValueError("MemPO works on text alone: pass a tokenizer as processing_class, and a text model")
        keep_differentiable(self.model)
        check_tags(self._tokenizer)
        self._limit_turns(args.max_turn_length)
        self.last_rollout: RolloutRecord | None = None
        self._score_answers = AnswerScorer(self.model, args.memory_scoring)
        self._old_logps_due = False
        self._judged_early: JudgedMemories | None = None

    def _limit_turns(self, tokens: int) -> None:
        """Bounds what one call generates to a turn; `max_completion_length` bounds the episode."""
        config = self.model.config.get_text_config()
        limits = [getattr(config, "max_position_embeddings", None)]
        if self.use_vllm:
            self.vllm_generation.max_completion_length = tokens
            limits.append(self.args.vllm_max_model_length)
            if self.vllm_mode == "server":
                client = getattr(self.vllm_generation, "vllm_client", None)
                length = server_length(client, self.accelerator, self.args, self.model.name_or_path)
                limits.append(length)
        else:
            self.generation_config.max_new_tokens = self.generation_kwargs["max_new_tokens"] = tokens
        longest = min((limit for limit in limits if limit), default=None)
        # A context must leave room for the longest turn.
        self._engine_limit = None if longest is None else longest - tokens + 1
        if self._engine_limit is not None and self._engine_limit < 2:
            raise ValueError(
                f"max_turn_length={tokens} leaves no room for a prompt: the model or its server holds {longest} "
                "tokens. Lower max_turn_length"
            )

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

    def _generate_turns(self, contexts: list[list[int]]) -> tuple[list[list[int]], list[list[float]] | None]:
        return self._generate_single_turn(contexts, None, {}, num_generations=1)

    def _max_over_ranks(self, count: int) -> int:
        return int(self.accelerator.gather(torch.tensor([count], device=self.accelerator.device)).max())

    def _turn_loop(self) -> TurnLoop:
        args = self.args
        limits = TurnLimits(
            args.max_turns, args.max_tool_length, args.max_completion_length, self._engine_limit, args.tool_timeout,
            args.tool_concurrency,
        )  # fmt: skip
        return TurnLoop(
            self._tokenizer,
            self._generate_turns,
            self.eos_token_ids,
            context=args.context,
            context_turns=args.context_turns,
            limits=limits,
            suffix_ids=self._get_tool_suffix_ids,
            equalize=self._max_over_ranks,
            event_loop=self.async_loop if self._has_async_funcs else None,
        )

    def _tool_call_loop(
        self,
        prompts: list,
        prompt_ids: list[list[int]],
        completion_ids: list[list[int]],
        completions: list,
        logprobs: list[list[float]] | None,
        images: Any,
        multimodal_fields: Any,
    ) -> tuple:
        loop = self._turn_loop()
        environments = self.environments or [None] * len(prompt_ids)
        episodes = []
        for row, (ids, environment) in enumerate(zip(prompt_ids, environments, strict=True)):
            tools = {**self._sync_tool_dicts[row], **self._async_tool_dicts[row]}
            turn, turn_logprobs = completion_ids[row], None if logprobs is None else logprobs[row]
            if not self._fits(ids):  # nothing was sampled from this prompt
                turn, turn_logprobs = [self.eos_token_ids[0]], None if logprobs is None else [0.0]
            episode = Episode(ids, tools, environment)
            loop.add_turn(episode, ids, turn, turn_logprobs)
            if not self._fits(ids):
                episode.stop_reason = "truncated"
            episodes.append(episode)
        self._episodes = loop.run(episodes)
        warn_if_truncated(self._episodes)
        masks = [torch.tensor(episode.mask, device=self.accelerator.device) for episode in episodes]
        self._turn_mask = torch.nn.utils.rnn.pad_sequence(masks, batch_first=True)  # (B, C)
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
        self, inputs: list[dict[str, Any]], prompts: list, completions: list, completion_ids_list: list[list[int]]
    ) -> Tensor:
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._prompts, self._rewards = prompts, rewards
        self._memories = self._judged_early or self._judge_memories()
        self._judged_early = None
        self._log_completion_extra("stop_reason", [episode.stop_reason for episode in self._episodes])
        texts = [", ".join(f"{reward:.3g}" for reward in row) for row in self._memories.rewards.tolist()]
        self._log_completion_extra("memory_rewards", texts)
        for name, values in episode_metrics(self._episodes, self._memories).items():
            for value in values:
                self._log_metric(name, value)
        return rewards

    def _judge_memories(self, completions: CompletionLogps | None = None) -> JudgedMemories:
        args, episodes = self.args, self._episodes
        score = partial(
            self._score_answers,
            self.model,
            [episode.prompt_ids for episode in episodes],
            [episode.completion_ids for episode in episodes],
            [answer.ids for answer in self._answers],
            pad_token_id=self._tokenizer.pad_token_id,
            max_tokens=args.memory_scoring_tokens,
            equalize=self._max_over_ranks,
            completions=completions,
        )
        with self.accelerator.autocast():
            return judge_memories(
                [find_memory_spans(self._tokenizer, e.completion_ids, e.mask) for e in episodes],
                self._answers,
                None if args.memory_baseline == "none" else [self._baselines(e) for e in episodes],
                max(episode.turns for episode in episodes),
                score,
                args.memory_threshold,
                args.memory_threshold_mode,
            )

    def _baselines(self, episode: Episode) -> list[tuple[int, int]]:
        """For each turn, the part of the completion that its memory is compared with."""
        turns = find_turns(episode.mask)
        context = self.args.context if self.args.memory_baseline == "visible" else "full"
        return [
            (visible_start(turns, turn, context, self.args.context_turns), start)
            for turn, (start, _) in enumerate(turns)
        ]

    # Advantage hook: from (B,) to (B, C)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._answers = [
            encode_answer(
                self._tokenizer,
                check_row(row, f"the row of question {row.get('question_id')!r}", self.args.answers_column),
                self.args.answer_template,
            )
            for row in inputs
        ]
        self._old_logps_due = self._scoring_gives_old_logps()
        mode = "train" if self.model.training else "eval"
        output = super()._generate_and_score_completions(inputs)
        logged = self._logs["completion"]
        for row in range(len(logged)):
            logged[row] = plain_messages(logged[row])
        group_size = self.num_generations if mode == "train" else self.num_generations_eval
        memories, args = self._memories, self.args
        table = torch.stack([memories.rewards, memories.p_mem, memories.p_full], dim=-1)  # (B, T, 3)
        table = self.accelerator.pad_across_processes(table, dim=1, pad_index=torch.nan)
        rewards, p_mem, p_full = self.accelerator.gather(table).unbind(dim=-1)  # (N, T)
        for name, value in memory_metrics(
            rewards, p_mem, p_full, group_size, args.memory_std_floor, args.memory_pool
        ).items():
            self._metrics[mode][name].append(value)
        if "importance_sampling_ratio" in output:
            dropped = masked_fraction(output["importance_sampling_ratio"], self._turn_mask)
            self._metrics[mode]["sampling/masked_fraction"].append(self.accelerator.gather(dropped).mean().item())
        advantages = memory_advantages(rewards, group_size, args.memory_std_floor, args.memory_pool)
        first = self.accelerator.process_index * len(inputs)
        mine = slice(first, first + len(inputs))
        outcome, memory = output["advantages"], advantages[mine]  # (B,), (B, T)
        output["advantages"] = token_advantages(
            outcome, args.memory_weight * memory, memories.spans, output["completion_ids"].size(1)
        )
        self.last_rollout = RolloutRecord(
            inputs,
            self._prompts,
            self._episodes,
            self._answers,
            memories,
            dict(zip(self.reward_func_names, self._rewards[mine].T, strict=True)),
            (self._rewards[mine] * self.reward_weights.to(self._rewards.device)).nansum(dim=1),
            outcome,
            memory,
            output["advantages"],
        )
        return output

    # Log-probs: old ones from the pass that scores the answers, all of them under the visible context

    def _scoring_gives_old_logps(self) -> bool:
        """Whether TRL's next log-probs are old ones, and the pass over the trajectories has them as well."""
        args = self.args
        generate_every = args.steps_per_generation * self.num_iterations
        wanted = args.gradient_accumulation_steps % generate_every != 0 or (
            self.use_vllm and self.vllm_importance_sampling_correction
        )
        return wanted and self._score_answers.shared and args.context == "full" and self.temperature == 1

    def _count_forwarded(self, attention_mask: Tensor) -> None:
        """Logs what a training forward costs: tokens over all ranks, padding left out, and memory on a GPU."""
        if not torch.is_grad_enabled():
            return
        tokens = self.accelerator.reduce(attention_mask.sum().float(), reduction="sum")
        self._metrics["train"]["step/tokens_forwarded"].append(tokens.item())
        if torch.cuda.is_available():
            self._metrics["train"]["step/peak_memory_gib"].append(torch.cuda.max_memory_allocated() / 2**30)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        self._turn_mask = inputs["tool_mask"] * inputs["completion_mask"]
        return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        if self._old_logps_due:
            self._old_logps_due = False
            completions = CompletionLogps(fused_log_probs)
            self._judged_early = self._judge_memories(completions)
            if completions.rows:
                return completions.padded(logits_to_keep), None, None
        parent = super()._get_per_token_logps_and_entropies
        if self.args.context == "full" or is_single_turn(self._turn_mask):
            self._count_forwarded(attention_mask)
            return parent(model, input_ids, attention_mask, logits_to_keep, batch_size, **kwargs)

        def forward(ids: Tensor, seen: Tensor, width: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
            self._count_forwarded(seen)
            return parent(model, ids, seen, width, **kwargs)

        turn_mask = pad(self._turn_mask, (0, logits_to_keep - self._turn_mask.size(1)))
        turn_mask = turn_mask * attention_mask[:, -logits_to_keep:]  # (B, C)
        return forward_by_turn(
            forward, input_ids, attention_mask, turn_mask, batch_size, self._tokenizer.pad_token_id,
            self.args.context_turns,
        )  # fmt: skip
