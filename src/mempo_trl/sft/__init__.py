"""The cold start: traces that teach the format, and training on them."""
