"""What a run left behind, to look at: the trace file, the HTML viewer of trajectories, and plots."""

from .plots import ObjectiveScore, plot_context_tokens, plot_objectives, plot_training
from .traces import SCHEMA_VERSION, ToolCall, Trace, Turn, read_traces, write_traces
from .viewer import show_trajectory, write_viewer

__all__ = [
    "SCHEMA_VERSION",
    "ObjectiveScore",
    "ToolCall",
    "Trace",
    "Turn",
    "plot_context_tokens",
    "plot_objectives",
    "plot_training",
    "read_traces",
    "show_trajectory",
    "write_traces",
    "write_viewer",
]
