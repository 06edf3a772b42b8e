"""The options that say which SuperLink is meant. Apart from ``deploy.link``, which takes a second to import: ``--help`` need not."""

from __future__ import annotations

import argparse
from pathlib import Path

from strategies.config import ConfigError

ADDRESS = "127.0.0.1:8000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say which SuperLink is meant."""
    parser.add_argument("--link", default=ADDRESS, metavar="HOST:PORT", help=f"the SuperLink's Control address; default: {ADDRESS}")
    parser.add_argument("--certs", type=Path, default=Path("certs"), metavar="DIR", help="the folder with ca.crt; default: certs")
    parser.add_argument("--insecure", action="store_true", help="the SuperLink was started with --insecure")


def ca_of(options: argparse.Namespace) -> Path | None:
    """The authority's certificate that ``options`` mean, None without TLS. Raises ``ConfigError`` if it is missing."""
    if options.insecure:
        return None
    ca = options.certs / "ca.crt"
    if not ca.exists():
        raise ConfigError(f"{ca} does not exist; say with --certs where the certificates are (or --insecure if the SuperLink has none)")
    return ca.absolute()
