"""What a look at the data found, in two halves: words that may leave this machine, and words that may not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strategies.data_warnings import few

Verdict = Literal["PASS", "WARN", "STOP"]


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes
    ----------
    verdict : ``STOP``: these data cannot be used as they are; ``WARN``: they can, but look at them; ``PASS``.
    kind : the check's name.
    text : what was found; no value, no label, no path and no number of samples, so that it may travel.
    advice : what to do about it, under the same rule; "" for ``PASS``.
    here : figures and names, for this machine only.
    named : every sample or file that it is about, for this machine only.
    """

    verdict: Verdict
    kind: str
    text: str
    advice: str = ""
    here: str = ""
    named: tuple[str, ...] = ()

    def local(self) -> str:
        """All of it in one line, with the first of the names."""
        figures = "; ".join(filter(None, (self.here, few(self.named))))
        return self.text + (f" [{figures}]" if figures else "") + (f": {self.advice}" if self.advice else "")

    def travelling(self) -> str:
        """What may leave this machine."""
        return self.text + (f": {self.advice}" if self.advice else "")

