"""Rhythms: what a part does over several steps."""
