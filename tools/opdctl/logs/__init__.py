"""A run's log: from its pods while they live, else from the store."""
