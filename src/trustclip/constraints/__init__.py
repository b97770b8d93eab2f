"""The library: divergences, gates, levels, aggregation, and what a method is."""
