"""Transformers built on the tensor cosine product: 1/C of the parameters, exact algebra."""

from tcpvit import algebra

__version__ = "0.1.0"

__all__ = ["__version__", "algebra"]
