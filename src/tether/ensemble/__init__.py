"""Many networks as one: stacked parameters, one forward and backward for all, compiled perceptrons."""
