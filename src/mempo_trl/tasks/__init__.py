"""Questions, tools and rewards. A task knows neither torch nor TRL."""
