"""Playing an episode turn by turn: the visible context, tools, limits, and when it stops."""
