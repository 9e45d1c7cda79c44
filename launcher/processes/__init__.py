"""Everything that knows about processes: ranks, the store between them, threads, and whose failure came first."""
