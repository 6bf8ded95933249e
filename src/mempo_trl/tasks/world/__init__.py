"""The embedded world: questions without end, an expert that answers them, and a tiny model that knows it."""
