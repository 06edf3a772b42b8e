"""What ``fedhearth doctor`` checks, one module a subject; each check is a ``Finding``.

Checks read, and probe over the network; they change nothing on either machine. Texts are for the person at this
machine, so they may name paths, unlike errors that a client sends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["pass", "warn", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report: what was looked at, and what to do if it is not as it must be."""

    verdict: Verdict
    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.verdict:4}  {self.check:12} {self.text}"


def passed(check: str, text: str) -> Finding:
    return Finding("pass", check, text)


def warned(check: str, text: str) -> Finding:
    return Finding("warn", check, text)


def failed(check: str, text: str) -> Finding:
    return Finding("FAIL", check, text)


def guarded(check: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """``findings``, where a check that breaks down is itself a failure, so that the others still run."""
    try:
        yield from findings
    except Exception as error:
        yield failed(check, f"the check itself failed ({type(error).__name__}: {error})")
