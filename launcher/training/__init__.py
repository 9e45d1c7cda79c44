"""The loop, the step, and everything that a step is made of."""
