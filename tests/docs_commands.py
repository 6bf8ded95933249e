"""Commands in the documentation: what is called is there, and takes the options that it is given."""

import argparse
import re
import shlex
import tomllib

import pytest
from trl import ModelConfig, SFTConfig, TrlParser

from docs_pages import ROOT
from mempo_trl import MemPOConfig
from mempo_trl.cli import build_parser
from mempo_trl.cli.arguments import TrainArguments
from mempo_trl.cli.train import parse_options as parse_training
from mempo_trl.sft.arguments import SFTArguments


def parse_options(argv):
    """Reads options of training as `mempo train` does."""
    return parse_training([*argv, "--bf16", "false"])


def check_command(command, where):
    words = [word for word in shlex.split(command, comments=True) if not re.fullmatch(r"[A-Z_]+=\S*", word)]
    name, rest = words[0].removeprefix(".venv/bin/"), words[1:]
    assert name in CHECKS, f"{where}: no test knows the command {name!r}"
    try:
        CHECKS[name](rest)
    except SystemExit:
        pytest.fail(f"{where}: {command}")


def check_mempo(words):
    if words[0] in ("train", "sft"):
        check_options(words[1:], {"train": TrainArguments, "sft": SFTArguments}[words[0]])
    else:
        build_parser().parse_args(words)


def check_options(words, *arguments):
    config = SFTConfig if SFTArguments in arguments else MemPOConfig
    parser = TrlParser([*arguments, config, ModelConfig])
    known = {option for action in parser._actions for option in action.option_strings} | {"--config", "--help_all"}
    unknown = [word for word in words if word.startswith("--") and word.split("=")[0] not in known]
    assert not unknown, f"unknown options: {' '.join(unknown)}"


def check_make(words):
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    target, *options = words
    assert target in targets, f"no target {target}"
    assert all(option.startswith("ARGS=") for option in options), options
    if target == "train":
        check_python(["examples/train_mempo.py", *shlex.split(" ".join(options).removeprefix("ARGS="))])


def check_python(words):
    if words[0] == "-m":
        return check_module(words[1:])
    assert (ROOT / words[0]).is_file(), f"no file {words[0]}"
    if words[0] == "examples/train_mempo.py":
        return check_recipe(words)
    check_own_options(ROOT / words[0], words[1:])


def check_own_options(file, words):
    """Options of a script that makes its parser itself."""
    own = set(re.findall(r'add_argument\(\s*"(?:-\w", ")?(--[\w-]+)"', file.read_text()))
    unknown = [word for word in words if word.startswith("--") and word.split("=")[0] not in own]
    assert not own or not unknown, f"unknown options: {' '.join(unknown)}"


def check_recipe(words):
    check_options(words[1:], TrainArguments)
    files = [word for word in words if word.startswith("examples/configs/")]
    assert all((ROOT / file).is_file() for file in files), f"no file {files}"


def check_module(words):
    if words[0] == "mempo_trl.cli":
        check_mempo(words[1:])
    elif words[0] == "pip":
        check_pip(words[1:])
    elif words[0] not in ("venv", "http.server"):
        path = ROOT / "src" / words[0].replace(".", "/")
        assert path.with_suffix(".py").is_file(), f"no module {words[0]}"
        check_own_options(path.with_suffix(".py"), words[1:])


def check_pip(words):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"(?:mempo-trl|\.)\[([\w,]+)\]", " ".join(words)):
        missing = set(extras.split(",")) - set(project["optional-dependencies"])
        assert not missing, f"no extra {missing}"


def check_accelerate(words):
    assert words[0] == "launch"
    script = next(i for i, word in enumerate(words) if word.endswith(".py") or word == "-m")
    files = re.findall(r"\S+\.yaml", " ".join(words[:script]))
    assert all((ROOT / file).is_file() for file in files), f"no file {files}"
    check_python(words[script:])


def check_trl(words):
    from trl.scripts.vllm_serve import make_parser

    assert words[0] == "vllm-serve", words
    make_parser(argparse.ArgumentParser().add_subparsers()).parse_args(words[1:])


CHECKS = {
    "mempo": check_mempo,
    "make": check_make,
    "python": check_python,
    "pip": check_pip,
    "accelerate": check_accelerate,
    "trl": check_trl,
    "pre-commit": lambda words: None,
    "git": lambda words: None,
    "cd": lambda words: None,
    "curl": lambda words: None,
    "vllm": lambda words: None,
}
