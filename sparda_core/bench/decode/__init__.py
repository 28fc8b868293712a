"""Decode on a GPU, measured: cells, traces, floors, tables."""
