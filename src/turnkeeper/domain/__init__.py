"""The rules as tables and pure functions: no I/O, no clock, no randomness, no logging."""
