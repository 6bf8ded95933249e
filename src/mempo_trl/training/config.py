"""`MemPOConfig`: GRPO's options, and those of the memory and the turn loop."""

from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig

from ..integrations.resume import read_switch
from ..memory.advantages import POOLS
from ..memory.answers import ANSWER_TEMPLATE
from ..memory.rewards import THRESHOLD_MODES
from ..memory.scoring.engine import SCORINGS
from ..rollout.budget import COMPACTION_PROMPT, ContextBudget, check_context_tokens
from ..rollout.context import CONTEXTS
from ..types import MAX_TURN_LENGTH, TurnLimits

LOGPS = ("auto", "packed", "padded")
BASELINES = ("history", "visible", "none")


@dataclass
class MemPOConfig(GRPOConfig):
    r"""
    Configuration class for the [`MemPOTrainer`].

    It inherits every option of [`~trl.GRPOConfig`]. Seven defaults differ: `num_generations` 16, `loss_type` `"grpo"`,
    `beta` 0.001 (the paper publishes no value; its neighbours use 0.001) and `use_bias_correction_kl` False (the plain
    k3 estimate) are the paper's algorithm; `per_device_train_batch_size` 16 holds one such group;
    `max_completion_length` 8192 holds a whole episode, tool results included; `vllm_importance_sampling_mode`
    `"token_truncate"`, since TRL's `"sequence_mask"` can drop whole long trajectories. Where a default follows from a
    table of docs/results.md, the field's help names it.

    Parameters:
        > Parameters that control what the policy sees

        context (`str`, *optional*, defaults to `"memory"`):
            `"memory"`: every turn sees the prompt and the last `context_turns` turns with their tool results, in
            generation and in the loss, as the agent will. `"full"`: every turn sees the whole history, as in the
            published training and in GRPO.
            `"budget"`: every turn sees the history until that is nearly `context_tokens` long; then the policy is asked
            to write a memory, and later turns see the prompt, that memory and what follows it. Only these memories are
            scored.
        context_turns (`int`, *optional*, defaults to `1`):
            Past turns that a turn sees in `"memory"` context.
        context_tokens (`int`, *optional*):
            Most tokens that a turn and what it sees have in `"budget"` context, which needs it.
        compaction_prompt (`str`, *optional*):
            The user message that asks for a memory in `"budget"` context.

        > Parameters that control the memory reward

        memory_weight (`float`, *optional*, defaults to `1.0`):
            Weight of the memory advantage beside the outcome advantage. 0 leaves GRPO's alone.
        memory_reward_weights (`list[float]`, *optional*):
            Weights of the trainer's `memory_reward_funcs`, one for each. Default: 1 for all.
        memory_threshold (`float`, *optional*, defaults to `0.5`):
            Answer tokens that the model gives at most this probability are left out. `None` or 0 keeps all.
        memory_threshold_mode (`str`, *optional*, defaults to `"either"`):
            Which tokens pass: those above the threshold in `"either"` context, in `"both"`, or in each context on its
            own, `"independent"`, as in the published code, where a memory that lost the answer can look perfect.
        memory_baseline (`str`, *optional*, defaults to `"history"`):
            What the memory is compared with: the answer's probability given the whole `"history"` before the turn (the
            paper), given what was `"visible"` when the memory was written, or `"none"`: then the threshold looks at the
            memory's probabilities alone.
        memory_std_floor (`float`, *optional*, defaults to `0.01`):
            A pool of memory rewards whose std is below this gives no advantage.
        memory_pool (`str`, *optional*, defaults to `"group"`):
            Memory rewards are normalised over all turns of a question's `"group"`, or `"turn"` by turn.
        logps (`str`, *optional*, defaults to `"auto"`):
            How the log-probs that the loss needs are computed: `"packed"` forwards each distinct token once, prompts
            shared and without padding; `"padded"` forwards a row for each trajectory, or for each turn in `"memory"`
            context; `"auto"` is packed where the model's attention allows it, after a comparison in the first batch.
        logps_max_tokens (`int`, *optional*, defaults to `32768`):
            Most tokens of a packed row, which is one forward; a micro-batch that has more is split.
        memory_scoring (`str`, *optional*, defaults to `"auto"`):
            How answers are scored. `"shared"` forwards each prompt and trajectory once and branches the answers off,
            and in `"full"` context takes old log-probs from the same pass where they are needed; `"separate"` forwards
            one sequence for each context; `"auto"` is `"shared"` where the model's attention allows it, checked on the
            first batch.
        memory_scoring_tokens (`int`, *optional*, defaults to `32768`):
            Most tokens, padding included, in one scoring forward.
        answer_template (`str`, *optional*):
            Text around the gold answers when they are scored, with `{a}` where they go.
        answers_column (`str`, *optional*, defaults to `"answers"`):
            Column of the dataset with the gold answers: a list of strings, one for each objective.

        > Parameters that control the questions

        curriculum_column (`str`, *optional*):
            Column of numbers: questions are asked in its order, the smallest first, and not shuffled.
        max_redraws (`int`, *optional*, defaults to `0`):
            A generation batch in which every group is tied, its outcome rewards being equal, is generated again from
            the same questions, at most so many times. Then it is trained on as it is.

        > Parameters that control the episode

        max_turns (`int`, *optional*, defaults to `16`):
            Most turns of an episode.
        max_turn_length (`int`, *optional*, defaults to `1024`):
            Most tokens that the model writes in one turn, within the episode's `max_completion_length`.
        max_tool_length (`int`, *optional*, defaults to `1024`):
            Most tokens of one tool result; a longer one is cut, with a marker.
        tool_timeout (`float`, *optional*, defaults to `60.0`):
            Seconds that a tool call may take.
        tool_concurrency (`int`, *optional*, defaults to `64`):
            Tool calls that run at once on each process.
    """

    num_generations: int | None = field(
        default=16, metadata={"help": "Trajectories sampled for each question, G. Default: the paper's 16."}
    )
    per_device_train_batch_size: int = field(
        default=16, metadata={"help": "Trajectories per device and backward pass. Default: one group of 16."}
    )
    loss_type: str = field(
        default="grpo",
        metadata={"help": "Loss formulation, as in GRPOConfig. Default: the paper's per-trajectory mean, 'grpo'."},
    )
    beta: float = field(
        default=0.001,
        metadata={
            "help": "KL coefficient. The paper has a KL term and no published value; its neighbours use 0.001, the "
            "default. See 'What did not matter?' in docs/results.md."
        },
    )
    use_bias_correction_kl: bool = field(
        default=False,
        metadata={
            "help": "Whether the KL term is multiplied by the importance ratio, as in GRPOConfig. Default: not, since "
            "the paper's term is the plain k3 estimate."
        },
    )
    max_completion_length: int | None = field(
        default=TurnLimits.max_completion_length,
        metadata={"help": "Most tokens of an episode: all turns and tool results, without the prompt."},
    )
    vllm_importance_sampling_mode: str = field(
        default="token_truncate",
        metadata={
            "help": "As in GRPOConfig. Default: token level, since 'sequence_mask' can drop whole long trajectories."
        },
    )
    context: str = field(
        default="memory",
        metadata={
            "help": "What a turn sees: 'memory': the prompt and the last `context_turns` turns, or the 'full' history, "
            "as in the published training, or 'budget': the history since the last memory, which is asked for when "
            "`context_tokens` are nearly reached. Default: 'Is training in memory context worth it?' in "
            "docs/results.md.",
            "choices": CONTEXTS,
        },
    )
    context_turns: int = field(
        default=1, metadata={"help": "Past turns, with their tool results, that a turn sees in 'memory' context."}
    )
    context_tokens: int | None = field(
        default=None,
        metadata={"help": "Most tokens that a turn and what it sees have in 'budget' context, which needs it."},
    )
    compaction_prompt: str = field(
        default=COMPACTION_PROMPT, metadata={"help": "What asks for a memory in 'budget' context."}
    )
    memory_weight: float = field(
        default=1.0,
        metadata={
            "help": "Weight of the memory advantage beside the outcome advantage; 0 leaves GRPO's alone. Default: "
            "'Does MemPO beat GRPO?' and 'What did not matter?' in docs/results.md."
        },
    )
    memory_reward_weights: list[float] | None = field(
        default=None,
        metadata={"help": "Weights of the trainer's memory_reward_funcs, one for each; default: 1 for all."},
    )
    memory_threshold: float | None = field(
        default=0.5,
        metadata={
            "help": "Probability that an answer token must exceed to be scored; 0 or None keeps all tokens. Default: "
            "'Which threshold?' in docs/results.md."
        },
    )
    memory_threshold_mode: str = field(
        default="either",
        metadata={
            "help": "Where a token must exceed the threshold: in 'either' context, in 'both', or 'independent': in "
            "each on its own (the published code, which rewards a memory that lost the answer). Default: 'Which "
            "threshold?' in docs/results.md.",
            "choices": THRESHOLD_MODES,
        },
    )
    memory_baseline: str = field(
        default="history",
        metadata={
            "help": "What a memory is compared with: the answer's probability given the whole 'history' (the paper), "
            "given what was 'visible' when it was written, or 'none'. Default: 'Which baseline?' in docs/results.md.",
            "choices": BASELINES,
        },
    )
    memory_std_floor: float = field(
        default=0.01,
        metadata={
            "help": "A pool of memory rewards with a smaller std gives no memory advantage. Default: 'What did not "
            "matter?' in docs/results.md."
        },
    )
    memory_pool: str = field(
        default="group",
        metadata={
            "help": "Memory rewards share a mean and std over all turns of a question's 'group' (the paper), or "
            "'turn' by turn. Default: 'What did not matter?' in docs/results.md.",
            "choices": POOLS,
        },
    )
    memory_scoring: str = field(
        default="auto",
        metadata={
            "help": "How answers are scored: 'shared' forwards each prompt and trajectory once, 'separate' one "
            "sequence for each context, 'auto' shares where the model's attention allows it.",
            "choices": SCORINGS,
        },
    )
    logps: str = field(
        default="auto",
        metadata={
            "help": "How the trained log-probs are computed: 'packed', each distinct token forwarded once; 'padded', a "
            "row for each trajectory or turn; 'auto': packed where the model's attention allows it."
        },
    )
    logps_max_tokens: int = field(
        default=32768,
        metadata={"help": "Most tokens of a packed row, which is one forward; a longer micro-batch is split."},
    )
    memory_scoring_tokens: int = field(
        default=32768, metadata={"help": "Most tokens, padding included, in one forward of the answer scoring."}
    )
    answer_template: str = field(
        default=ANSWER_TEMPLATE,
        metadata={"help": "Text around the gold answers when they are scored, with {a} where they go."},
    )
    answers_column: str = field(
        default="answers",
        metadata={"help": "Column with the gold answers: a list of strings, one for each objective."},
    )
    curriculum_column: str | None = field(
        default=None,
        metadata={"help": "Column of numbers: questions are asked in its order, the smallest first, not shuffled."},
    )
    max_redraws: int = field(
        default=0,
        metadata={
            "help": "How many times a generation batch in which every group is tied (its outcome rewards are equal) is "
            "generated again from the same questions, before it is trained on as it is."
        },
    )
    max_turns: int = field(default=TurnLimits.max_turns, metadata={"help": "Most turns of an episode."})
    max_turn_length: int = field(
        default=MAX_TURN_LENGTH, metadata={"help": "Most tokens that the model writes in one turn."}
    )
    max_tool_length: int = field(
        default=TurnLimits.max_tool_length,
        metadata={"help": "Most tokens of one tool result; a longer one is cut, with a marker."},
    )
    tool_timeout: float | None = field(
        default=TurnLimits.tool_timeout, metadata={"help": "Seconds that a tool call may take."}
    )
    tool_concurrency: int = field(
        default=TurnLimits.tool_concurrency, metadata={"help": "Tool calls that run at once on each process."}
    )

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except ValueError as error:
            if "divisible by num_generations" not in str(error):
                raise
            raise ValueError(self._batch_size_message()) from error
        self.resume_from_checkpoint: Any = read_switch(self.resume_from_checkpoint)
        if self.curriculum_column is not None:
            self.shuffle_dataset = False
        self._check_choices()
        self._check_numbers()
        self._refuse_options()

    @property
    def context_budget(self) -> ContextBudget | None:
        """The budget of the turn loop; None in another context."""
        if self.context_tokens is None:
            return None
        return ContextBudget(self.context_tokens, self.max_turn_length, self.compaction_prompt)

    def _refuse_options(self) -> None:
        check_context_tokens(self.context, self.context_tokens)
        if self.importance_sampling_level == "sequence" and self.memory_weight != 0:
            raise ValueError(
                "importance_sampling_level='sequence' gives all tokens of a trajectory one ratio, so the gradient sees "
                "only the sum of their advantages and the memory's credit is spread over the whole trajectory. Set "
                "importance_sampling_level='token', or memory_weight=0"
            )
        if self.max_tool_calling_iterations is not None:
            raise ValueError(
                f"max_tool_calling_iterations={self.max_tool_calling_iterations} has no effect, because MemPOTrainer "
                "replaces TRL's tool loop. Set max_turns, which also counts the turn that answers"
            )
        if self.off_policy_mask_threshold is not None and self.memory_weight != 0:
            raise ValueError(
                f"off_policy_mask_threshold={self.off_policy_mask_threshold} drops trajectories by the sign of their "
                "advantage, which differs between the tokens of a trajectory once memories have an advantage, so that "
                "parts of a trajectory would be dropped. Set off_policy_mask_threshold=None, or memory_weight=0"
            )
        if self.remove_unused_columns:
            raise ValueError(
                f"remove_unused_columns=True removes the column {self.answers_column!r}, and what reward functions and "
                "environments read. Set remove_unused_columns=False"
            )

    def _batch_size_message(self) -> str:
        batch, group = self.generation_batch_size, self.num_generations
        smaller, larger = batch // group * group, (batch // group + 1) * group
        sizes = f"{smaller} or {larger}" if smaller else str(larger)
        return (
            f"a generation batch must hold whole groups: got {batch} trajectories (per_device_train_batch_size="
            f"{self.per_device_train_batch_size} x {self.world_size} processes x steps_per_generation="
            f"{self.steps_per_generation}) and num_generations={group}. Set generation_batch_size={sizes}, or "
            f"num_generations to a divisor of {batch}"
        )

    def _check_choices(self) -> None:
        for name, choices in {
            "context": CONTEXTS,
            "memory_threshold_mode": THRESHOLD_MODES,
            "memory_baseline": BASELINES,
            "memory_pool": POOLS,
            "memory_scoring": SCORINGS,
            "logps": LOGPS,
        }.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown. Set one of {', '.join(choices)}")

    def _check_numbers(self) -> None:
        if self.max_completion_length is None:
            raise ValueError("max_completion_length=None puts no limit on an episode. Set it to a number of tokens")
        for name in (
            "context_turns",
            "max_turns",
            "max_turn_length",
            "max_tool_length",
            "tool_concurrency",
            "memory_scoring_tokens",
            "logps_max_tokens",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_redraws < 0:
            raise ValueError(f"max_redraws must be 0 or more, got {self.max_redraws}")
        if self.tool_timeout is not None and self.tool_timeout <= 0:
            raise ValueError(f"tool_timeout must be more than 0, or None for no limit: got {self.tool_timeout}")
        if self.memory_threshold is not None and not 0 <= self.memory_threshold < 1:
            raise ValueError(
                f"memory_threshold must be in [0, 1), or None to keep every token: got {self.memory_threshold}"
            )
        self.max_turn_length = min(self.max_turn_length, self.max_completion_length)
        if self.memory_std_floor < 0:
            raise ValueError(f"memory_std_floor must be 0 or more, got {self.memory_std_floor}")
        if self.answer_template.count("{a}") != 1:
            raise ValueError(f"answer_template must contain {{a}} exactly once: got {self.answer_template!r}")
