"""SparDA: sparse attention that decides one layer early what to move."""

__version__ = "0.1.0"
