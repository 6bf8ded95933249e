"""A transformers model in this process that writes turns, sampled as in training."""

from collections.abc import Sequence

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from .endpoints import Sampling


class LocalModel:
    """Generates turns in a batch, with dropout off.

    Args:
        model: a causal language model.
        tokenizer: of the model.

    Attributes:
        eos_token_ids: the ids that end a turn: the tokenizer's and the generation config's, as in TRL's trainer.
        max_context_length: tokens that the model can hold, prompt included; None if its config does not say.
        pad_token_id: the tokenizer's, or its end id.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model = model
        self.eos_token_ids = end_ids(tokenizer, model.generation_config)
        self.max_context_length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.pad_token_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    def generate(self, contexts: list[list[int]], sampling: Sampling, seed: int | None = None) -> list[list[int]]:
        """Samples one turn for each context: the ids up to the one that ends it, or up to the turn's budget."""
        pad, width = self.pad_token_id, max(map(len, contexts))
        device, training = self.model.device, self.model.training
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in contexts], device=device)
        seen = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in contexts], device=device)
        self.model.eval()
        try:
            with torch.random.fork_rng(enabled=seed is not None):
                if seed is not None:
                    torch.manual_seed(seed)
                out = self.model.generate(ids, attention_mask=seen, generation_config=self._config(sampling))
        finally:
            self.model.train(training)
        rows = out[:, width:].tolist()
        ends = [next((i for i, t in enumerate(row) if t in self.eos_token_ids), len(row)) for row in rows]
        return [row[: end + 1] for row, end in zip(rows, ends, strict=True)]

    def _config(self, sampling: Sampling) -> GenerationConfig:
        sampled = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
        return GenerationConfig(
            max_new_tokens=sampling.max_turn_length,
            do_sample=sampling.temperature > 0,
            # What a checkpoint brings along, such as a repetition penalty, is not what the policy was trained with.
            repetition_penalty=1.0,
            eos_token_id=list(self.eos_token_ids),
            pad_token_id=self.pad_token_id,
            **(sampled if sampling.temperature > 0 else {}),
        )


def end_ids(tokenizer: PreTrainedTokenizerBase, config: GenerationConfig | None) -> Sequence[int]:
    """The ids that end a turn: the tokenizer's, and those of a generation config."""
    more = getattr(config, "eos_token_id", None) or []
    return list(dict.fromkeys([tokenizer.eos_token_id, *([more] if isinstance(more, int) else more)]))
