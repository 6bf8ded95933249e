"""`GRPOTrainer` where it speaks of completions and an episode is meant: prompts, environments, truncation."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from ..integrations.vllm_server import samples_for_each
from ..rollout.loop import TurnLoop
from ..rollout.plain import PlainText
from ..rollout.prompt_settings import PromptSettings
from ..types import Message, TurnLimits
from .arguments import check_tools
from .batch import GenerationBatch
from .environments import check_environments, replace_environments
from .metrics import length_metrics
from .turn_ends import end_turns, prepare_template, prompt_settings


class EpisodeTrainer(GRPOTrainer):
    """
    Mixed in before [`~trl.GRPOTrainer`].

    - Prompts, with what `reset` added to them, are made plain: no text in them opens a turn.
    - Turns end at the chat template's end tokens and at stop strings; what shapes the prompts is saved with the model.
    - Each trajectory is generated from its own prompt, also where `reset` gives those of a group different texts.
    - An environment that a call which timed out may still write to is not used any more.
    - An episode is truncated if its stop reason says so, in TRL's metrics and for `mask_truncated_completions`. TRL
      goes by the last token, which an episode without room for a tool result has sampled, and one that a stop string
      ended has not.
    """

    _batch: GenerationBatch
    _engine_limit: int | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        prepare_template(kwargs["args"], kwargs["model"], kwargs["processing_class"])
        super().__init__(*args, **kwargs)
        self._chat, self._stop = end_turns(self)
        self.mask_truncated_completions = False  # TRL's; `_leave_out_truncated` does it
        check_tools(self.tools)
        if self.environment_factories is not None:
            check_environments(self.environment_factories, self._environment_pool)

    def _turn_limits(self, max_context_length: int | None) -> TurnLimits:
        args = self.args
        return TurnLimits(
            args.max_turns, args.max_tool_length, args.max_completion_length, max_context_length, args.tool_timeout,
            args.tool_concurrency,
        )  # fmt: skip

    @cached_property
    def prompt_settings(self) -> PromptSettings:
        """What shapes the prompts of the policy; it is saved with it."""
        return prompt_settings(self)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        self.prompt_settings.save(output_dir or self.args.output_dir)

    def _generate(self, prompts: list[list[Message]]) -> tuple[Any, ...]:
        plain = PlainText(self._tokenizer)
        return super()._generate([plain.messages(prompt) for prompt in prompts])

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], images: Any, multimodal_fields: Any, num_generations: int, **kwargs: Any
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        if num_generations > 1 and self.use_vllm and self.vllm_generation.mode == "server":
            num_generations = samples_for_each(prompt_ids, num_generations)
        return super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations, **kwargs)

    def _turn_loop(self) -> TurnLoop:
        args = self.args
        return TurnLoop(
            self._tokenizer,
            lambda contexts: self._generate_single_turn(contexts, None, {}, num_generations=1),
            self.eos_token_ids,
            context=args.context,
            context_turns=args.context_turns,
            budget=args.context_budget,
            limits=self._turn_limits(self._engine_limit),
            chat=self._chat,
            stop=self._stop,
            equalize=self._max_over_ranks,
            event_loop=self.async_loop if self._has_async_funcs else None,
        )

    def _max_over_ranks(self, count: int) -> int:
        return int(self.accelerator.gather(torch.tensor([count], device=self.accelerator.device)).max())

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        if self.environments is not None:
            replace_environments(self.environments, self._environment_pool, self._batch.episodes)
        return super()._calculate_rewards(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        mode = "train" if self.model.training else "eval"
        output = super()._generate_and_score_completions(inputs)
        episodes, device = self._batch.episodes, self.accelerator.device
        truncated = torch.tensor([episode.stop_reason == "truncated" for episode in episodes], device=device)
        lengths = torch.tensor([sum(episode.mask) for episode in episodes], device=device)
        gather = self.accelerator.gather
        for name, value in length_metrics(gather(lengths), gather(truncated)).items():
            self._metrics[mode][name][-1] = value
        return self._leave_out(output, truncated) if self.args.mask_truncated_completions else output

    def _leave_out(self, output: dict[str, Any], truncated: Tensor) -> dict[str, Any]:
        """Takes truncated trajectories, (B,), out of the loss and its normaliser."""
        kept = (~truncated).unsqueeze(1).long()
        for name in ("completion_mask", "tool_mask"):
            output[name] = output[name] * kept
        tokens = (output["completion_mask"] * output["tool_mask"]).sum()
        return {**output, "num_items_in_batch": self.accelerator.gather(tokens).sum()}
