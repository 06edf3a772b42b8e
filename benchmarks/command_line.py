"""Runs of a benchmark made through FedHearth's own command line, each in a process of its own; and what was left of them found again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


class OtherSettings(ValueError):
    """A file holds a run of other settings than those asked for: neither may pass for the other."""


def command(*words: str) -> None:
    """One command of FedHearth on one thread; raises ``RuntimeError`` with the end of its complaint."""
    done = subprocess.run([sys.executable, "-m", "deploy.cli", *words], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(words[:3])} ...: {done.stderr[-2000:] or f'exit code {done.returncode}'}")


def words_of(settings: Mapping[str, Any]) -> list[str]:
    """``-c KEY=VALUE`` for every setting.

    >>> words_of({"lr": 0.1, "logit-prior": True})
    ['-c', 'lr=0.1', '-c', 'logit-prior=true']
    """
    return [word for key, value in settings.items()
            for word in ("-c", f"{key}={str(value).lower() if isinstance(value, bool) else value}")]


def there(path: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The result in ``path``, None if there is none.

    Raises
    ------
    OtherSettings
        If it is a run of other ``settings``, of a search that chose other rates for instance.
    """
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    if differing := differences(found["settings"], settings):
        raise OtherSettings(f"{path.name} is a run of other settings ({differing}): delete it, or name another folder with --results")
    return found


def unmet(had: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """``differences`` in what is wanted; what else there is does not matter."""
    return differences({key: had.get(key) for key in wanted}, wanted)


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """``key: a, not b`` for every differing key, "" if there is none."""
    return "; ".join(f"{key}: {ours.get(key)!r}, not {theirs.get(key)!r}" for key in sorted(ours.keys() | theirs.keys())
                     if ours.get(key) != theirs.get(key))
