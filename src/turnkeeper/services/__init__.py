"""The use cases, one module each. Expected outcomes are returned as closed unions (`answers`); `api` maps them to HTTP."""
