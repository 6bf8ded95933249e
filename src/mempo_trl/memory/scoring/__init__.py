"""Log-probabilities of the gold answer after the contexts that a memory is scored by."""
