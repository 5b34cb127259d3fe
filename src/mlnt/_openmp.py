"""Imported before torch: threads that wait for each other give way.

Spinning, as they do by default, they slow a small step fiftyfold where other programs compute
beside. OpenMP reads this when torch loads it; what the user has set stays.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
