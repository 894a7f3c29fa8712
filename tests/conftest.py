"""Settings of every test run: one thread a worker, no display, no hub, repeatable examples."""

from __future__ import annotations

import os

# Read when NumPy, torch, matplotlib, transformers and Triton load, so before any is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Whatever imports Triton first, kernels are interpreted; those who compile do so in a child.
os.environ.setdefault("TRITON_INTERPRET", "1")

from hypothesis import settings

# CI draws the same examples every time; elsewhere each run looks further.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("development", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "development")
