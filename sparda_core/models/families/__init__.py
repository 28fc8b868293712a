"""Families of models: what a config.json says, as constants of our decoder.

A family is a file and a line in registry.py.
"""
