"""The reference for every log-prob: one sequence in a forward, unpadded, with positions from its own start."""

import inspect

import torch


def last_logps(model, ids, count, temperature=1.0):
    """Log-probs of the last `count` of a sequence's tokens, with gradient. Shape: (count,)."""
    inputs = {"input_ids": torch.tensor([ids])}
    if "position_ids" in inspect.signature(model.forward).parameters:
        inputs["position_ids"] = torch.arange(len(ids)).unsqueeze(0)
    logits = model(**inputs, use_cache=False).logits[0, -count - 1 : -1].float() / temperature
    return logits.log_softmax(dim=-1).gather(-1, torch.tensor(ids[-count:]).unsqueeze(-1)).squeeze(-1)


def turn_logps(model, prompt, completion, visible, temperature=1.0):
    """Log-probs of each turn's tokens after the prompt and what was visible, 0 on tool results. Shape: (C,)."""
    values = [torch.zeros(()) for _ in completion]
    for place, start in enumerate(visible):
        if start >= 0:
            values[place] = last_logps(model, prompt + completion[start : place + 1], 1, temperature)[0]
    return torch.stack(values)


def answer_logps(model, prompts, completions, answers, contexts):
    """Log-probs of an answer after each context, zeros behind a shorter one. Shape: (N, L)."""
    scores = torch.zeros(len(contexts), max(len(answers[context.row]) for context in contexts))
    for index, (row, start, end) in enumerate(contexts):
        answer = answers[row]
        with torch.no_grad():
            scores[index, : len(answer)] = last_logps(
                model, prompts[row] + completions[row][start:end] + answer, len(answer)
            )
    return scores
