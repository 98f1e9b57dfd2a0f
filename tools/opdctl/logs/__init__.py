"""A run's log: from its pods while they live, and from the store over all attempts."""
