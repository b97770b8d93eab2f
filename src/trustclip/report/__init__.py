"""What runs did, on a page and in words: comparisons, tables, figures, explanations."""
