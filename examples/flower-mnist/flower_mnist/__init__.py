"""MNIST on Flower without waiting for stragglers."""
