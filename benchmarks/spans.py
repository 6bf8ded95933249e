"""Speed of finding memories and placing advantages: 128 trajectories of 8,000 tokens, one core.

    python benchmarks/spans.py [--tokenizer DIR]

Prints tokens a second, the median of several runs. The bar: 1 M tokens a second.
"""

import argparse
import random
import statistics
import time

import torch
from transformers import AutoTokenizer, ByT5Tokenizer

from mempo_trl.memory import encode_answer, find_memory_spans, token_advantages


def trajectory(tokenizer, length: int, rng: random.Random) -> tuple[list[int], list[int]]:
    """Turns with a memory, and tool results, of some hundred tokens each."""
    ids: list[int] = []
    mask: list[int] = []
    while len(ids) < length:
        words = " ".join(rng.choices(["the", "capital", "of", "France", "is", "Paris", "日本", "é"], k=60))
        for text, mark in ((f"<mem>{words}</mem><think>{words}</think>", 1), (words * 3, 0)):
            piece = tokenizer.encode(text, add_special_tokens=False)
            ids += piece
            mask += [mark] * len(piece)
    return ids[:length], mask[:length]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokenizer", help="name or folder; default: one token a byte, slow implementation")
    parser.add_argument("--trajectories", type=int, default=128)
    parser.add_argument("--length", type=int, default=8000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(0)
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer) if options.tokenizer else ByT5Tokenizer()
    distinct = [trajectory(tokenizer, options.length, rng) for _ in range(8)]
    batch = [distinct[i % 8] for i in range(options.trajectories)]
    tokens = options.trajectories * options.length
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        spans = [find_memory_spans(tokenizer, ids, mask) for ids, mask in batch]
        turns = max(span.turn for row in spans for span in row) + 1
        token_advantages(torch.zeros(len(batch)), torch.ones(len(batch), turns), spans, options.length)
        for _ in range(options.trajectories // 16):  # a group shares its answers
            encode_answer(tokenizer, ["New York", "Paris"])
        seconds.append(time.perf_counter() - start)
    rate = tokens / statistics.median(seconds) / 1e6
    print(f"{tokens:,} tokens, {sum(map(len, spans)):,} memories: {rate:.1f} M tokens/s (bar: 1.0)")


if __name__ == "__main__":
    main()
