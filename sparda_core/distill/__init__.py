"""Distilling a Forecast from a frozen model."""
