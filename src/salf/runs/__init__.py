"""Configs, runs and comparisons."""
