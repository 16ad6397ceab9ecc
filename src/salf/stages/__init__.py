"""Stages that an update passes on its way: compression, memory, robust averages."""
