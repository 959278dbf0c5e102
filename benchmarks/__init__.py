"""Side by side with peers, each in one run: `python -m benchmarks.NAME` from the root of the repository."""
