"""Learning what is better from comparisons alone."""
