"""Pieces of studies on many machines, by Ray: ``tether run NAME --ray [ADDRESS]``."""
