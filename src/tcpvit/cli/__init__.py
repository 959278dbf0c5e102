"""The command line, the only room that prints: a file for each verb, which parses, calls and shows."""

from tcpvit.cli.app import main

__all__ = ["main"]
