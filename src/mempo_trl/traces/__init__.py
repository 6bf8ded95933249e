"""The trace file: one episode a line, what it holds and how it is read and written."""

from .file import SCHEMA_VERSION, ToolCall, Trace, Turn, read_traces, write_traces

__all__ = ["SCHEMA_VERSION", "ToolCall", "Trace", "Turn", "read_traces", "write_traces"]
