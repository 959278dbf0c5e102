"""Operators of our own for what torch has no fast kernel for, built at first use; each has a fallback in torch."""
