"""Decoders with four projections, and what reads their weights."""
