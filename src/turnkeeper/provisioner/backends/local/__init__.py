"""Sandboxes on this machine, made by bubblewrap."""
