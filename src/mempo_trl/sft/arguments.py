"""Options of the cold start. Imports nothing heavy: `mempo sft --help` reads them too."""

from dataclasses import dataclass, field


@dataclass
class SFTArguments:
    """What `mempo sft` takes beside the options of TRL's `SFTConfig` and `ModelConfig`."""

    traces: str = field(metadata={"help": "trace file of mempo traces or mempo eval"})
    context: str | None = field(
        default=None,
        metadata={
            "help": "what a turn sees: memory (a row for each turn) or full; default: as the model was trained before, "
            "or memory",
            "choices": ["memory", "full"],
        },
    )
    context_turns: int | None = field(
        default=None,
        metadata={"help": "past turns that are seen in memory context; default: as the model was trained, or 1"},
    )
    chat_template_kwargs: str | None = field(
        default=None,
        metadata={
            "help": "JSON options of the chat template, such as '{\"enable_thinking\": false}'; default: as the model "
            "was trained before, or none"
        },
    )
    min_reward: float = field(default=1.0, metadata={"help": "traces with a smaller reward are left out"})
