"""From configs to objects: a typed schema, composed once on rank 0, and the parts built from it."""
