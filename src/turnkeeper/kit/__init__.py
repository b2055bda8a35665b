"""Small mechanisms without any domain: the only place for clocks, randomness, ids and processes."""
