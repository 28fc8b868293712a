"""Closing the loop: cells that are measured and predicted from the same plan, and what the two say of each other."""
