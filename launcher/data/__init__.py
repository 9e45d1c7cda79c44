"""Rows: loaders over the samplers, datasets in memory, and the data that ships."""
