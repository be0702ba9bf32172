"""Metrics: how the gradient and the noise of a part are measured."""
