"""Fleets: devices with a speed, a link and times of their own, and a simulated clock."""
