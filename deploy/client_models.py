"""Which personal model is meant: a client of a run, or of whatever a site has kept."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from deploy.launch import importable_here, place, saved_settings, state_of, to_finish
from strategies.config import ConfigError, check_name, check_site_name, nearest

if TYPE_CHECKING:
    from client_app.personal import Personal

FILE = "personal.safetensors"
SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that name a client's model."""
    parser.add_argument("--run", dest="folder", default="", metavar="DIR", help="the folder of a finished run on this machine")
    parser.add_argument("--client", required=True, metavar="NAME", help="whose model: a client, or this site")
    parser.add_argument("--state-dir", default="", metavar="DIR",
                        help="where clients keep their state; at a site, its own: then --run is not needed; default: the run's")
    parser.add_argument("--run-id", default="", metavar="ID", help="with --state-dir alone: of which run; default: the newest")


def open_model(options: argparse.Namespace, device: str = "cpu") -> Personal:
    """The model that ``options`` name, on ``device``; raises ``ConfigError``."""
    try:
        folder = find(options.folder, options.client, options.state_dir, options.run_id)
    except OSError as error:
        raise ConfigError(f"cannot look for the personal model: {error.filename}: {error.strerror}; check its permissions") from None
    from client_app.personal import DeviceError, PersonalError, load_personal

    importable_here()  # an encoder of the user's own
    try:
        return load_personal(folder, device)
    except PersonalError as error:
        raise ConfigError(f"{error} ({folder / FILE})") from error
    except DeviceError as error:
        raise ConfigError(f"--device: {error}") from None


def find(run: str, client: str, state_dir: str = "", run_id: str = "") -> Path:
    """The folder of ``client``'s personal model.

    Raises
    ------
    ConfigError
        If it cannot be found; lists the clients there are.
    """
    check_site_name(client)
    if run_id:
        check_name("--run-id", run_id)
    if run:
        return _of_run(place("--run", run), client, state_dir, run_id)
    if not state_dir:
        raise ConfigError("say where the model lies: --run DIR, the folder of a run, or at a site --state-dir DIR, its own")
    root = place("--state-dir", state_dir)
    if not run_id:
        kept = [path for path in root.glob(f"*/{client}/{FILE}")]
        return max(kept, key=lambda path: path.stat().st_mtime_ns).parent if kept else _refuse(client, root, root.glob(f"*/*/{FILE}"))
    folder = root / run_id / client
    return folder if (folder / FILE).is_file() else _refuse(client, root / run_id, (root / run_id).glob(f"*/{FILE}"))


def _of_run(folder: Path, client: str, state_dir: str, run_id: str) -> Path:
    saved = saved_settings(folder)
    state = state_of(folder, saved)
    if state_dir:
        state = place("--state-dir", state_dir) / state.name
    if run_id:
        state = state.with_name(run_id)
    if (state / client / FILE).is_file():
        return state / client
    if not (folder / "summary.json").exists():
        raise ConfigError(f"the run in {folder} is not finished, and personal models come at its end; {to_finish(folder)}")
    return _refuse(client, state, state.glob(f"*/{FILE}"))


def _refuse(client: str, where: Path, found: Iterable[Path]) -> NoReturn:
    names = sorted({path.parent.name for path in found})
    if not names:
        raise ConfigError(f"no personal model lies under {where}. On separate machines each stays at its site: run this there, "
                          "with --state-dir and the site's name as --client")
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    raise ConfigError(f"no personal model of {client!r} lies under {where}{nearest(client, tuple(names))} "
                      f"(there are: {', '.join(names[:SHOWN])}{more})")
