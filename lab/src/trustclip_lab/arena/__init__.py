"""The arena: constraints with equal tuning budgets, many seeds, and what their runs say."""
