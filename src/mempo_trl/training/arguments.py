"""First mistakes with the trainer's arguments, answered with what to write in their place."""

from collections.abc import Callable, Iterable
from typing import Any

from transformers.utils import get_json_schema
from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

from .config import MemPOConfig


def refuse_kinds(args: Any, tools: Any, environment_factory: Any) -> None:
    """Raises TypeError for an argument of the trainer that is another kind of thing than it has to be."""
    if not isinstance(args, MemPOConfig):
        raise TypeError(
            f"args must be a MemPOConfig, got a {type(args).__name__}. Write MemPOConfig(...), which has every option "
            "of GRPOConfig as well"
        )
    if tools is not None and not isinstance(tools, list):
        raise TypeError(f"tools must be a list of functions, got a {type(tools).__name__}. Write tools=[...]")
    factories = environment_factory.values() if isinstance(environment_factory, dict) else [environment_factory]
    for factory in factories:
        if factory is not None and not callable(factory):
            name = type(factory).__name__
            raise TypeError(
                f"environment_factory makes a new environment for each trajectory, got a {name} that is made already. "
                f"Pass the class, environment_factory={name}, or functools.partial({name}, ...) if it takes arguments"
            )


def check_tools(tools: Iterable[Callable[..., Any]]) -> None:
    """Raises ValueError for a tool that no prompt can describe, because it lacks a docstring or type hints."""
    for tool in tools:
        try:
            get_json_schema(tool)
        except (DocstringParsingException, TypeHintParsingException) as error:
            owner = getattr(tool, "__self__", None)
            name = tool.__name__ if owner is None else f"{type(owner).__name__}.{tool.__name__}"
            helper = "" if owner is None else " If it is not for the policy to call, begin its name with an underscore."
            raise ValueError(
                f"the tool {name} cannot be described to the policy: {error} Give each argument a type hint, and the "
                f"tool a docstring that says what it does and then describes each argument:\n"
                f'    def search(query: str) -> str:\n        """\n        Search the collection.\n\n        Args:\n'
                f'            query: What to look for.\n        """\n{helper}'
            ) from error
