"""What a run tells: console, log files, metrics, TensorBoard and status.json."""
