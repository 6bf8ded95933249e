"""Options of the cold start. Imports nothing heavy: `mempo sft --help` reads them too."""

from dataclasses import dataclass, field


@dataclass
class SFTArguments:
    """What `mempo sft` takes beside the options of TRL's `SFTConfig` and `ModelConfig`."""

    traces: str = field(metadata={"help": "trace file of mempo traces or mempo eval"})
    context: str = field(
        default="memory",
        metadata={"help": "what a turn sees: memory (a row for each turn) or full", "choices": ["memory", "full"]},
    )
    context_turns: int = field(default=1, metadata={"help": "past turns that are seen in memory context"})
    min_reward: float = field(default=1.0, metadata={"help": "traces with a smaller reward are left out"})
