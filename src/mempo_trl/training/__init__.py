"""`MemPOTrainer` and its configuration: thin glue between the method and TRL."""
