"""The console script `mempo`. Its modules import nothing heavy until a command runs, so that `--help` is quick."""

import argparse
import sys
from collections.abc import Sequence

from .. import __version__
from . import ask, evaluate, report, retrieval, training
from .options import Parser, underscored


def build_parser() -> argparse.ArgumentParser:
    """The parser of `mempo` with all its commands; each sets `run`, a function of the parsed arguments."""
    parser = Parser(prog="mempo", description="Train, run, evaluate and look at agents that write their own memory.")
    parser.add_argument("--version", action="version", version=f"mempo {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where in the code an error came from")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (ask, evaluate, report, retrieval, training):
        module.add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the process's exit code. What the user can put right ends with a message."""
    argv = underscored(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    if getattr(args, "passes_on", False):
        args.script_argv = argv[argv.index(args.command) + 1 :]
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return args.run(args) or 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output, such as `head`, has enough
        sys.stderr.close()
        return 0
    except (ValueError, OSError, ImportError) as error:
        if args.traceback:
            raise
        print(f"mempo {args.command}: {error}", file=sys.stderr)
        return 1
