"""What scoring the memories costs, beside one old-log-prob pass over the same trajectories.

    python benchmarks/scoring.py                                   # on 2 CPU cores about an hour
    python benchmarks/scoring.py --cases 6x2200 --repeats 3
    python benchmarks/scoring.py --device cuda --dtype bfloat16 --shape qwen2.5-0.5b --cases 16x8000 --group 8
    python benchmarks/scoring.py --model HuggingFaceTB/SmolLM2-135M

A case TxL is a group of trajectories of T turns and L tokens, prompt included: random ids, and at the start of each
turn but the first a memory, scored against the history before it. Timed in turn, `--repeats` times:

    old       the log-probs of the completions, as TRL takes them for vLLM's correction or several updates
    separate  answers scored one sequence for each context
    shared    answers scored by the shared engine, which forwards the trajectories itself
    both      old log-probs and answers from one pass of the shared engine

Columns are medians over the repeats: seconds for `old`, then ratios to it. `extra` is what scoring adds where old
log-probs are needed, (both - old) / old; `floor` is the same in tokens, each distinct prefix counted once; `cheaper` is
separate over the extra.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from trl.trainer.utils import add_fused_lm_head

from mempo_trl.memory import score_answers
from mempo_trl.memory.scoring.packing import Trajectories
from mempo_trl.memory.scoring.separate import AnswerContext
from mempo_trl.memory.scoring.shared import CompletionLogps, score_answers_shared
from mempo_trl.training.packed import fused_log_probs

# hidden size, layers, heads, key-value heads, intermediate size, vocabulary
SHAPES = {
    "tiny": (64, 2, 2, 2, 256, 1024),  # about the embedded world's model
    "smollm2-135m": (576, 30, 9, 3, 1536, 49152),
    "qwen2.5-0.5b": (896, 24, 14, 2, 4864, 151936),
    "qwen2.5-1.5b": (1536, 28, 12, 2, 8960, 151936),
}
CASES = "2x2200 4x2200 6x2200 12x2200 16x2200 6x1000 6x4000 6x8000 16x8000"
# What must hold for a case: the column, and whether its value is the most or the least.
BARS = [("6x2200", "extra", "<=", 0.45), ("6x2200", "cheaper", ">=", 4.0), ("16x8000", "cheaper", ">=", 10.0)]
MAX_DIFFERENCE = 1e-4
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
COLUMNS = {"old": "f", "separate": "f", "shared": "f", "extra": "f", "floor": "f", "cheaper": "f", "difference": "e"}


class Batch(NamedTuple):
    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    answer_ids: list[list[int]]
    contexts: list[AnswerContext]


def build_model(shape: str) -> nn.Module:
    """A random model of the shape of a published one."""
    hidden, layers, heads, key_value_heads, intermediate, vocabulary = SHAPES[shape]
    config = LlamaConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=key_value_heads,
        intermediate_size=intermediate, vocab_size=vocabulary, tie_word_embeddings=True, max_position_embeddings=32768,
        initializer_range=0.06,
    )  # fmt: skip
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def build_batch(turns: int, length: int, group: int, prompt: int, memory: int, answer: int, vocabulary: int) -> Batch:
    """One question's trajectories."""
    rng = random.Random(f"{turns}x{length}")

    def tokens(count: int) -> list[int]:
        return [rng.randrange(vocabulary) for _ in range(count)]

    starts = [(length - prompt) * turn // turns for turn in range(1, turns)]
    contexts = [
        context
        for row in range(group)
        for start in starts
        for context in (AnswerContext(row, start, start + memory), AnswerContext(row, 0, start))
    ]
    completions = [tokens(length - prompt) for _ in range(group)]
    return Batch([tokens(prompt)] * group, completions, [tokens(answer)] * group, contexts)


def old_log_probs(model: nn.Module, batch: Batch) -> Tensor:
    """As GRPOTrainer takes them."""
    rows = [prompt + completion for prompt, completion in zip(batch.prompt_ids, batch.completion_ids, strict=True)]
    input_ids = torch.tensor(rows, device=model.device)
    labels = input_ids.clone()
    labels[:, : len(batch.prompt_ids[0])] = -100
    with torch.no_grad():
        mask = torch.ones_like(input_ids)
        return model(input_ids=input_ids, attention_mask=mask, labels=labels, fused_lm_head=True).log_probs


def packed_tokens(batch: Batch, completions: bool) -> int:
    return sum(len(row.ids) for row in Trajectories(*batch, completions).pack(10**9))


def measure(
    model: nn.Module, batch: Batch, repeats: int, max_tokens: int, clock: Callable[[], float]
) -> dict[str, float]:
    """One line of the table."""
    options = {"pad_token_id": 0, "max_tokens": max_tokens}
    engines: dict[str, Callable[[], Tensor]] = {
        "old": lambda: old_log_probs(model, batch),
        "separate": lambda: score_answers(model, *batch, **options),
        "shared": lambda: score_answers_shared(model, *batch, **options),
        "both": lambda: score_answers_shared(model, *batch, **options, completions=CompletionLogps(fused_log_probs)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    results = {}
    for _ in range(repeats):
        for name, engine in engines.items():
            start = clock()
            results[name] = engine()
            if model.device.type == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(clock() - start)
    times = list(zip(*seconds.values(), strict=True))
    old_tokens = sum(map(len, batch.prompt_ids)) + sum(map(len, batch.completion_ids))
    distinct_old = packed_tokens(Batch(*batch[:3], []), True)
    return {
        "old": statistics.median(seconds["old"]),
        "separate": statistics.median(separate / old for old, separate, _, _ in times),
        "shared": statistics.median(shared / old for old, _, shared, _ in times),
        "extra": statistics.median((both - old) / old for old, _, _, both in times),
        "floor": (packed_tokens(batch, True) - distinct_old) / old_tokens,
        "cheaper": statistics.median(separate / max(both - old, 1e-9) for old, separate, _, both in times),
        "difference": max(float((results["separate"] - results[name]).abs().max()) for name in ("shared", "both")),
    }


def plot(cases: dict[str, dict[str, float]], path: str) -> None:
    """Cost of scoring in old-log-prob passes, by case."""
    import matplotlib.pyplot as plt

    from mempo_trl.report.plots import BLUE, GREEN, GREY, STYLE

    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(9, 4), layout="constrained")
        places = range(len(cases))
        for shift, (name, colour, label) in enumerate(
            [("separate", GREY, "separate"), ("shared", BLUE, "shared"), ("extra", GREEN, "shared, with old log-probs")]
        ):
            values = [max(case[name], 0) for case in cases.values()]
            bars = axis.bar([place + 0.27 * (shift - 1) for place in places], values, 0.25, color=colour, label=label)
            axis.bar_label(bars, [f"{value:.2g}" for value in values], fontsize=9, padding=1)
        axis.set_xticks(places, [f"T {name.replace('x', chr(10) + 'L ')}" for name in cases], fontsize=11)
        axis.set_title("Cost of scoring, in old-log-prob passes")
        axis.legend()
        figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", default=CASES.split(), help="turns x tokens")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--group", type=int, default=1, help="trajectories that share the prompt")
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--model", help="a model to load, in place of a random one")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompt", type=int, default=200, help="tokens of the prompt")
    parser.add_argument("--memory", type=int, default=80, help="tokens of a memory")
    parser.add_argument("--answer", type=int, default=30, help="tokens of the answer text")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for a machine that has other work too")
    parser.add_argument("--max-tokens", type=int, default=32768)
    parser.add_argument("--json", help="where to write the table")
    parser.add_argument("--plot", help="where to draw it, .svg or .png")
    args = parser.parse_args()

    model = AutoModelForCausalLM.from_pretrained(args.model) if args.model else build_model(args.shape)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    model = model.to(args.device, getattr(torch, args.dtype)).eval()
    old_log_probs(model, build_batch(2, 500, 1, 100, 10, 10, 1000))  # warm
    cases: dict[str, dict[str, float]] = {}
    print(" " * 9, *(f"{column:>10}" for column in COLUMNS))
    for name in args.cases:
        turns, length = map(int, name.split("x"))
        batch = build_batch(turns, length, args.group, args.prompt, args.memory, args.answer, model.config.vocab_size)
        cases[name] = case = measure(model, batch, args.repeats, args.max_tokens, CLOCKS[args.clock])
        print(f"{name:9}", *(f"{case[column]:10.2{kind}}" for column, kind in COLUMNS.items()), flush=True)
    for name, column, sign, bar in [*BARS, *((name, "difference", "<=", MAX_DIFFERENCE) for name in cases)]:
        if name in cases and (column != "difference" or args.dtype == "float32"):
            value = cases[name][column]
            holds = value <= bar if sign == "<=" else value >= bar
            print(f"{name}: {column} {value:.2g} {sign} {bar:g}: {'holds' if holds else 'FAILS'}")
    if args.json:
        text = json.dumps({"options": vars(args), "threads": torch.get_num_threads(), "cases": cases}, indent=1)
        Path(args.json).write_text(text + "\n")
    if args.plot:
        plot(cases, args.plot)


if __name__ == "__main__":
    main()
