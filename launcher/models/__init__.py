"""Models that ship."""
