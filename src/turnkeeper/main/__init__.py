"""One composition root per process: each reads the environment, builds the frozen settings and wires the parts together."""
