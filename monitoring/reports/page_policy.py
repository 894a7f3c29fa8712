"""What a browser may do with a report's page: nothing but show it."""

from __future__ import annotations

from typing import Final

__all__ = ["PAGE_POLICY"]

PAGE_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
"""Content-Security-Policy: in the page itself, and in the header of a server that sends it."""
