"""State directories: for their owner alone, on both sides. The server's holds models and keys, a site's what never leaves it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from strategies.config import ConfigError


def private_directory(path: Path) -> Path:
    """``path``, made with mode 0700 if it is not there; one that is there keeps its mode, which the doctor looks at.

    Raises
    ------
    ConfigError
        If it cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the state directory {path}: {error.strerror}; correct --state-dir, or chown what it lies "
                          "in") from None
    return path


def open_to_others(path: Path) -> str:
    """What is wrong if others can look into ``path``, and what to do; "" if they cannot, or where modes mean nothing."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "nt" or not mode & 0o077:
        return ""
    return f"{path} can be read by others (mode {mode:04o}), and holds models that were trained on private data; chmod 700 {path}"
