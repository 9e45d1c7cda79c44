"""What a run keeps: weights in generations that are whole or not there."""
