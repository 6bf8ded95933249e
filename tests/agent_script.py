"""What an agent's model says in tests, turn by turn, and the passages that it finds."""

import torch

from mempo_trl.tasks.search import Passage

FACTS = [Passage("0", "France", "Its capital is Paris."), Passage("1", "Peru", "Its capital is Lima.")]
CALL = '<tool_call>\n{{"name": "search", "arguments": {{"query": "{}"}}}}\n</tool_call>'
TURNS = [
    "<think>a</think>" + CALL.format("France"),
    "<mem>Paris</mem><think>b</think>" + CALL.format("Peru"),
    "<mem>Paris, Lima</mem><think>c</think>" + CALL.format("Chile"),
    "<mem>Paris, Lima</mem><think>d</think><answer>Paris; Lima</answer>",
]


class ScriptedGenerate:
    """In place of `model.generate`: each row of a batch gets the next text of a script."""

    def __init__(self, tokenizer, texts, end=True):
        self.tokenizer, self.texts, self.end = tokenizer, list(texts), end
        self.given = []  # ids without padding, one list for each call
        self.configs = []

    def __call__(self, ids, attention_mask, generation_config):
        self.given.append([row[seen.bool()].tolist() for row, seen in zip(ids, attention_mask, strict=True)])
        self.configs.append(generation_config)
        text = self.texts.pop(0)
        turns = [text] * len(ids) if isinstance(text, str) else text
        rows = [self.tokenizer.encode(t) + [self.tokenizer.eos_token_id] * self.end for t in turns]
        width = max(map(len, rows))
        pad = self.tokenizer.pad_token_id
        return torch.cat([ids, torch.tensor([row + [pad] * (width - len(row)) for row in rows])], dim=1)
