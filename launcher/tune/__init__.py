"""The batch that fits and pays: probes, fit, knee, advice."""
