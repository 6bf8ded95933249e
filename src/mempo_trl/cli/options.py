"""Options that several commands share, and what they open."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from ..rollout.context import CONTEXTS
from ..types import MAX_TURN_LENGTH, TurnLimits
from .arguments import TaskArguments

if TYPE_CHECKING:
    from ..inference.agent import MemoryAgent
    from ..rollout.prompt_settings import PromptSettings
    from ..tasks.task import Task


TOKEN_BUDGETS = ("max_tool_length", "max_completion_length")
"""What an endpoint that is asked with messages cannot be held to."""


class Parser(argparse.ArgumentParser):
    """Takes hyphens for underscores in the names of options, as TRL's parser does."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See `argparse.ArgumentParser`."""
        return super().parse_known_args(underscored(sys.argv[1:] if args is None else args), namespace)


def underscored(argv: Sequence[str]) -> list[str]:
    """`--max-turns=3` as `--max_turns=3`. Values are left alone."""
    words = [word.partition("=") for word in argv]
    return [
        name.replace("-", "_").replace("__", "--", 1) + equals + value if name.startswith("--") else word
        for word, (name, equals, value) in zip(argv, words, strict=True)
    ]


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of descriptions, so that examples can be copied."""


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int | None], help: str, examples: str = ""
) -> argparse.ArgumentParser:
    """Adds a command that calls `run`; `examples` stand below its options."""
    epilog = f"examples:\n{examples}" if examples else None
    description = help[0].upper() + help[1:] + "."
    parser = commands.add_parser(
        name, help=help, description=description, epilog=epilog, formatter_class=Formatter, allow_abbrev=False
    )
    parser.set_defaults(run=run)
    return parser


def add_task_options(parser: argparse.ArgumentParser, **changes: dict[str, Any] | None) -> None:
    """The options of `TaskArguments`.

    Args:
        parser: gets them.
        **changes: by option, arguments of `add_argument` over the usual ones; None leaves the option out.
    """
    group = parser.add_argument_group("task")
    for option in fields(TaskArguments):
        change = changes.get(option.name, {})
        if change is not None:
            usual: dict[str, Any] = {
                "default": option.default,
                "type": int if option.name in ("passages", "objectives", "count") else str,
                "nargs": "+" if option.name == "reward_funcs" else None,
                "help": option_help(option),
            }
            group.add_argument(f"--{option.name}", **(usual | change))


def option_help(option: Any) -> str:
    """The text of a dataclass's option, with its default if that says something."""
    default = "" if option.default in (MISSING, None) else f"; default: {option.default}"
    return option.metadata["help"] + default


def open_named_task(args: argparse.Namespace, dataset: str) -> "Task":
    """The task that the options of `TaskArguments` name."""
    from ..tasks.task import import_object, open_task

    factory = import_object(args.environment_factory) if args.environment_factory else None
    return open_task(dataset, args.corpus, args.passages, factory)


def add_model_options(parser: argparse.ArgumentParser, required: bool = True, contexts: bool = False) -> None:
    """What plays, and how it samples.

    Args:
        parser: gets the options.
        required: whether a model has to be named.
        contexts: whether several contexts can be, as a list.
    """
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        "--model_name_or_path",
        required=required,
        help="folder or Hub name of a transformers model, or URL of a server (see --tokenizer)",
    )
    model.add_argument(
        "--tokenizer",
        help="with a URL: the server is vLLM, asked with token ids of this tokenizer (folder or Hub name). Without it "
        "the URL is an OpenAI-compatible endpoint, asked with messages",
    )
    model.add_argument("--served_model", help="name of the model at the URL; default: the first that it lists")
    model.add_argument(
        "--tool_choice",
        choices=("auto", "none"),
        default="auto",
        help="none for endpoints that do not parse tool calls themselves; default: auto",
    )
    model.add_argument(
        "--request", type=json.loads, help="JSON fields of each request to a URL, such as '{\"seed\": 1}'"
    )
    model.add_argument("--device", help="of a transformers model; default: a GPU if there is one")
    model.add_argument(
        "--context",
        **({"type": words(*CONTEXTS)} if contexts else {"choices": CONTEXTS}),
        help="what a turn sees: memory (the prompt and its last turns), full (all turns)"
        f"{', or both, as full,memory' if contexts else ''}; default: as the model was trained, or memory",
    )
    model.add_argument("--temperature", type=float, default=1.0, help="default: 1, as in training; 0 is greedy")
    model.add_argument("--top_p", type=float, default=1.0, help="default: 1")
    # Without a default here: what is not given is as the model was trained with, see `read_settings`.
    for name, default, text in (
        ("max_turn_length", MAX_TURN_LENGTH, "most tokens of a turn"),
        ("max_tool_length", TurnLimits.max_tool_length, "most tokens of a tool result"),
        ("max_completion_length", TurnLimits.max_completion_length, "most tokens of an episode, without the prompt"),
        ("max_turns", TurnLimits.max_turns, "most turns of an episode"),
        ("context_turns", 1, "past turns seen in memory context"),
        ("context_tokens", "none", "most tokens that a turn and what it sees have in budget context"),
    ):
        model.add_argument(f"--{name}", type=int, help=f"{text}; default: as the model was trained, or {default}")
    model.add_argument(
        "--chat_template_kwargs",
        type=json.loads,
        help="JSON options of the chat template, such as '{\"enable_thinking\": false}'; default: as the model was "
        "trained, or none",
    )


def open_model(args: argparse.Namespace) -> tuple[Any, Any]:
    """The model and its tokenizer, for `MemoryAgent`. The API key is the environment variable OPENAI_API_KEY."""
    from ..inference.endpoints import ChatEndpoint, VLLMServer

    if not args.model.startswith(("http://", "https://")):
        return _local_model(args.model, args.device)
    options = {"model": args.served_model, "extra": args.request}
    if args.tokenizer is None:
        return ChatEndpoint(args.model, tool_choice=args.tool_choice, **options), None
    from transformers import AutoTokenizer

    from ..inference.local_model import end_ids

    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    ids = end_ids(tokenizer, _generation_config(args.tokenizer))
    return VLLMServer(args.model, eos_token_ids=ids, **options), tokenizer


def _local_model(name: str, device: str | None) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = AutoModelForCausalLM.from_pretrained(name, dtype="auto").to(device)
    return model, AutoTokenizer.from_pretrained(name)


def _generation_config(name: str) -> Any:
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(name)
    except OSError:  # many tokenizers stand alone
        return None


def settings_folder(args: argparse.Namespace) -> str | None:
    """Where what the policy was trained with is looked for; None for an endpoint, which has no folder."""
    return args.tokenizer if args.model.startswith(("http://", "https://")) else args.model


def read_settings(args: argparse.Namespace, context: str | None = None) -> "PromptSettings":
    """What shapes the prompts: the options that were given, else what the model was trained with, else the defaults."""
    from ..rollout.prompt_settings import OPTIONS, settings_of

    given = {name: getattr(args, name, None) for name in OPTIONS} | {"context": context}
    if isinstance(args.context, list) and "budget" in args.context and context != "budget":
        given["context_tokens"] = None  # it is meant for another context of the evaluation
    return settings_of(settings_folder(args), given)


def make_agent(
    model: Any, tokenizer: Any, environment_factory: Callable[[], Any], context: str | None, args: argparse.Namespace
) -> "MemoryAgent":
    """An agent with the options of `add_model_options`."""
    from ..inference.agent import MemoryAgent
    from ..inference.endpoints import Sampling

    budgets = [name for name in TOKEN_BUDGETS if getattr(args, name) is not None]
    if budgets and tokenizer is None:
        options = " and ".join(f"--{name}" for name in budgets)
        raise ValueError(
            f"{args.model} is asked with messages, whose tokens are not known here: it cannot be held to {options}. "
            "Leave that out, or ask a vLLM server with --tokenizer"
        )
    settings = read_settings(args, context)
    return MemoryAgent(
        model,
        tokenizer,
        environment_factory=environment_factory,
        settings=settings,
        sampling=Sampling(args.temperature, args.top_p, settings.max_turn_length),
    )


def numbers(text: str) -> list[int]:
    """`2,4,6` as a list, for argparse."""
    return [int(part) for part in text.split(",")]


def words(*choices: str) -> Callable[[str], list[str]]:
    """Reads `full,memory` as a list of `choices`, for argparse."""

    def read(text: str) -> list[str]:
        parts = text.split(",")
        unknown = [part for part in parts if part not in choices]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(choices)}")
        return parts

    return read
