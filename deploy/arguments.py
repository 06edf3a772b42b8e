"""What several commands ask of a word on the command line."""

from __future__ import annotations

import argparse


def count(text: str) -> int:
    """A whole number of 1 or more."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, got {text!r}")
    return number
