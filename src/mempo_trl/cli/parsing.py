"""TRL's parser for the options of training, as `mempo train`, `mempo sft` and the scripts in `examples/` use it."""

from collections.abc import Iterable
from typing import Any

from trl import TrlParser


class ScriptParser(TrlParser):
    """`TrlParser` that also takes `--config=FILE`, and hyphens for underscores in the names of a YAML file."""

    def parse_args_and_config(self, args: Iterable[str] | None = None, *rest: Any, **options: Any) -> tuple[Any, ...]:
        """See `TrlParser`."""
        if args is not None:
            args = [part for arg in args for part in (arg.split("=", 1) if arg.startswith("--config=") else [arg])]
        return super().parse_args_and_config(args, *rest, **options)

    def set_defaults_with_config(self, **config: Any) -> list[str]:
        """See `TrlParser`."""
        return super().set_defaults_with_config(**{name.replace("-", "_"): value for name, value in config.items()})
