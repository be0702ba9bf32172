"""Sharded parameters: what DTensors need. Local pieces, reductions, and whole matrices by owners."""
