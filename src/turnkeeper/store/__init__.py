"""Every line of SQL, and the only place that speaks to PostgreSQL.

A statement stands beside the one typed function that runs it; rows become frozen dataclasses at this edge. Use cases are
in `services`: they open a named transaction with `Database.run` and call statement functions with its `Tx`.
"""
