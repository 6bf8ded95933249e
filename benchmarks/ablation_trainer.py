"""What `ablations.py` adds to the trainer: memories that get no reward."""

from typing import Any

import torch
from torch import Tensor

from mempo_trl import MemPOTrainer

SHORT = 14  # tokens of a memory with three notes; one of 4 objectives has 18 in the end


class ChoosyTrainer(MemPOTrainer):
    """Rewards some memories only; the others stay out of the pool. For one process.

    Attributes:
        paid: "all" memories, those of trajectories with the "right" answer, or "short" ones, of `SHORT` tokens at most.
    """

    paid = "all"

    def _calculate_rewards(self, *args: Any) -> Tensor:
        rewards = super()._calculate_rewards(*args)
        unpaid = torch.zeros_like(self._memories.rewards, dtype=torch.bool)  # (B, T)
        if self.paid == "right":
            unpaid[rewards.nansum(dim=1) <= 0] = True
        elif self.paid == "short":
            for row, spans in enumerate(self._memories.spans):
                for turn, start, end in spans:
                    unpaid[row, turn] = end - start > SHORT
        self._memories.rewards[unpaid] = torch.nan
        return rewards
