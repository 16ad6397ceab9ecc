"""A round, in parts: layers, arrivals, draws, backpropagation, the average and the step."""
