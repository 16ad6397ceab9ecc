"""What happens to an update on its way: compression, memory, robust averages."""
