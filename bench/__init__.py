"""Latency, throughput and memory of the whole product, measured on a real `turnkeeper up` of its own: `python -m bench`.

Nothing is simulated but the agent, which is the scripted one. Every chapter says what it measures; docs/operations/bench.md
says what to make of the numbers.
"""
