"""
Depth: orthogonal hidden layers
===============================
"""

import tether

print(tether.Orthogonal())
