"""Snapshots: the recorded state of a Workdir at a settlement, and what changed since the last one (D-08)."""
