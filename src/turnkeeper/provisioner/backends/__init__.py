"""Backends: where sandboxes are. `base` is their contract; they do not know each other."""
