"""What a run left behind, to look at: the HTML viewer of trajectories, plots, and the mask debugger."""

from .plots import ObjectiveScore, plot_context_tokens, plot_objectives, plot_training
from .viewer import show_trajectory, write_viewer

__all__ = [
    "ObjectiveScore",
    "plot_context_tokens",
    "plot_objectives",
    "plot_training",
    "show_trajectory",
    "write_viewer",
]
