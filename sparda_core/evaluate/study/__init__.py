"""A study of quality: methods and budgets on held-out windows of real text, every figure with an interval."""
