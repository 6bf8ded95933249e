"""Options that name a task, and those of `mempo train`. Imports nothing heavy: `--help` reads them too."""

from dataclasses import dataclass, field


@dataclass
class TaskArguments:
    """What is asked, with which tools, and what counts as right.

    A name such as `my_task:questions` is an import path: the object `questions` of the module `my_task`, which may lie
    in the current folder.
    """

    dataset: str = field(
        default="world",
        metadata={
            "help": "world (the embedded one), fanoutqa, a HotpotQA file (.json), a question file (.jsonl), or the "
            "import path (module:name) of a function that returns rows"
        },
    )
    corpus: str | None = field(
        default=None,
        metadata={"help": "index folder, corpus file or URL of a search server; default: the one of the dataset"},
    )
    passages: int = field(default=3, metadata={"help": "passages that a search returns"})
    environment_factory: str | None = field(
        default=None,
        metadata={
            "help": "import path (module:name) of what makes the environment of an episode, whose methods are the "
            "tools; default: search in the corpus"
        },
    )
    reward_funcs: list[str] | None = field(
        default=None,
        metadata={
            "help": "TRL reward functions: import paths (module:name), or names in mempo_trl.tasks.search; default: "
            "mempo_outcome_reward"
        },
    )

    objectives: int | None = field(
        default=None,
        metadata={"help": "questions that are joined into one (the paper's 2); default: unchanged, 4 in the world"},
    )
    count: int | None = field(
        default=None,
        metadata={"help": "most questions; default: all, in the world 100 or as many as the training needs"},
    )

    def __post_init__(self) -> None:
        self.reward_funcs = as_list(self.reward_funcs)


def as_list(names: list[str] | str | None) -> list[str] | None:
    """A YAML file may have one name instead of a list."""
    return [names] if isinstance(names, str) else names


@dataclass
class TrainArguments(TaskArguments):
    """What `mempo train` takes beside the options of `MemPOConfig` and of TRL's `ModelConfig`."""

    dataset_name: str | None = field(
        default=None, metadata={"help": "dataset of the Hub with the columns prompt and answers; instead of dataset"}
    )
    dataset_config: str | None = field(default=None, metadata={"help": "its configuration"})
    dataset_train_split: str = field(default="train", metadata={"help": "its split to train on"})
    dataset_test_split: str = field(default="test", metadata={"help": "its split to evaluate on"})
    memory_reward_funcs: list[str] | None = field(
        default=None,
        metadata={
            "help": "what a memory is worth: import paths (module:name), or answer_likelihood, which is the paper's "
            "reward and the default"
        },
    )
    eval_questions: int = field(
        default=0, metadata={"help": "questions that are held out, and played before and after training; 0 for none"}
    )
    eval_every: int = field(
        default=0, metadata={"help": "steps between two evaluations on them during training; 0 for none"}
    )
    trace_every: int = field(
        default=20, metadata={"help": "steps between two batches in OUTPUT_DIR/traces.jsonl; 0 for none"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory_reward_funcs = as_list(self.memory_reward_funcs)
