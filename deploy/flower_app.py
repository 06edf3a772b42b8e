"""What Flower is given to run: our packages as one of its apps, the run's settings, and where to submit them.

A deployment runs the two apps themselves. On Ray two others run, which carry their messages in bundles (``deploy.ray_server``).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from strategies.config import Scalar
from strategies.registry import default_items

PACKAGES = ("server_app", "client_app", "strategies", "models")
CONNECTION = "fedhearth"


@dataclass(frozen=True)
class Apps:
    """What Flower runs, and the modules of ``deploy`` that go with it to carry its messages; the rest of ``deploy`` stays here."""

    server: str
    client: str
    carriers: tuple[str, ...] = ()


OURS = Apps("server_app.main:app", "client_app.main:app")
ON_RAY = Apps("deploy.ray_server:app", "deploy.ray_client:app",
              ("__init__", "bundles", "ray_client", "ray_server", "scratch", "shared_records", "virtual_nodes"))


@dataclass(frozen=True)
class Place:
    """Where Flower works, inside the run's folder. ``app``'s name must be one that Flower accepts."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "flower" / "home"

    @property
    def app(self) -> Path:
        return self.root / "flower" / "app" / "fedhearth"

    @property
    def log(self) -> Path:
        return self.root / "flower.log"


def prepare(place: Place, items: Mapping[str, Scalar], port: int, apps: Apps = OURS) -> None:
    """Write the apps, the run's settings and the connection that ``flwr run`` reads."""
    shutil.rmtree(place.root / "flower", ignore_errors=True)
    place.app.mkdir(parents=True)
    place.home.mkdir()
    for package in PACKAGES:
        shutil.copytree(package_folder(package), place.app / package, ignore=shutil.ignore_patterns("__pycache__", "pages"))
    for name in apps.carriers:
        (place.app / "deploy").mkdir(exist_ok=True)
        shutil.copy(Path(__file__).with_name(f"{name}.py"), place.app / "deploy")
    (place.app / "pyproject.toml").write_text(app_description(apps), encoding="utf-8")
    (place.app.parent / "run-config.toml").write_text(toml_lines(items), encoding="utf-8")
    connection = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (place.home / "config.toml").write_text(connection, encoding="utf-8")


def package_folder(name: str) -> Path:
    """Where the package ``name`` lies: in a checkout or installed."""
    spec = find_spec(name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def app_description(apps: Apps) -> str:
    """A pyproject.toml for the bundle: an installed wheel has none to copy."""
    return ('[project]\nname = "fedhearth"\nversion = "0.1.0"\ndescription = "FedHearth"\nlicense = "Apache-2.0"\n'
            '\n[tool.flwr.app]\npublisher = "fedhearth"\n'
            f'\n[tool.flwr.app.components]\nserverapp = "{apps.server}"\nclientapp = "{apps.client}"\n'
            f'\n[tool.flwr.app.config]\n{toml_lines(default_items())}')


def toml_lines(items: Mapping[str, Scalar]) -> str:
    """Flat items as TOML, a line each; dotted keys become tables, which Flower flattens again."""
    return "".join(f"{key} = {toml(value)}\n" for key, value in items.items())


def toml(value: Scalar) -> str:
    """A scalar as TOML. JSON's strings and finite numbers are TOML's; infinity is not."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
