"""A small HTTP service for a classifier: concurrent requests are computed in batches, and everything has a limit.

`batches.py` collects images into batches, `requests.py` reads what clients send, `metrics.py` counts, `app.py` answers.
"""

from tcpvit.inference.serve.app import Limits, create_app

__all__ = ["Limits", "create_app"]
