"""The same training run on any number of devices: the launcher around the fixed global batch of ``samplers``."""
