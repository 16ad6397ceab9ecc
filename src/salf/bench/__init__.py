"""The straggler benchmark: one suite of scenarios in which all methods are compared alike."""
