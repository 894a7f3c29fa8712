"""The client's version, as polls and the user agent name it."""

from __future__ import annotations

__all__ = ["VERSION"]

VERSION = "0.1.0"
