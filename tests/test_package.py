"""What is sent to every client when a run is submitted: our four packages' code and nothing else."""

from __future__ import annotations

import ast
import io
import shutil
import tomllib
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from deploy.flower_app import ON_RAY, PACKAGES, Place, prepare
from strategies.registry import default_items

ROOT = Path(__file__).parents[1]
# pathspec has renamed what Flower calls it by
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
ALSO = {"pyproject.toml", ".info/CONTENT"}


def contents(app: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))) as bundle:
        return {name: bundle.read(name) for name in bundle.namelist()}


def code() -> set[str]:
    modules = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    return modules | {"server_app/vendored.json"}  # the charting library of the report


def test_the_bundle_of_a_checkout_holds_the_four_packages_alone(tmp_path: Path) -> None:
    # a copy, so that what is not ours to send can be planted; without the environment, which takes seconds to walk
    checkout = tmp_path / "fedhearth"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".venv", ".git", "runs", "scratch", "__pycache__", "*.egg-info"))
    for stray in ("notes.py", "patients.json", "models/labels.json", "client_app/data/scans.yml", "runs/a/run.json"):
        (checkout / stray).parent.mkdir(parents=True, exist_ok=True)
        (checkout / stray).write_text("{}", encoding="utf-8")
    sent = contents(checkout)
    assert set(sent) - ALSO == code()
    assert not [name for name in sent if name.startswith(("tests/", "deploy/", "benchmarks/"))]
    assert sum(map(len, sent.values())) < 2**21  # a fifth of what Flower lets through


def test_a_deployment_is_sent_the_same_code(tmp_path: Path) -> None:
    place = Place(tmp_path)
    prepare(place, default_items(), port=0)
    sent = contents(place.app)
    assert set(sent) - ALSO == code() and all(sent[name] == (ROOT / name).read_bytes() for name in code())
    assert tomllib.loads(sent["pyproject.toml"].decode())["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "server_app.main:app", "clientapp": "client_app.main:app"}


def test_the_ray_engine_sends_the_same_code_and_what_carries_its_messages(tmp_path: Path) -> None:
    place = Place(tmp_path)
    prepare(place, default_items(), 1, ON_RAY)
    sent, expected = contents(place.app), code() | {f"deploy/{name}.py" for name in ON_RAY.carriers}
    assert set(sent) - ALSO == expected
    assert all(sent[name] == (ROOT / name).read_bytes() for name in expected)


def test_what_carries_messages_on_ray_needs_nothing_else_of_deploy() -> None:
    for name in ON_RAY.carriers:
        tree = ast.parse((ROOT / "deploy" / f"{name}.py").read_text(encoding="utf-8"))
        needed = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        assert {module.removeprefix("deploy.") for module in needed if module.startswith("deploy.")} <= set(ON_RAY.carriers), name


def test_packages_that_are_installed_are_those_of_the_tree() -> None:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {pattern.rstrip("*") for pattern in found} == {*PACKAGES, "deploy"}
    missing = [path.parent for package in (*PACKAGES, "deploy") for path in (ROOT / package).rglob("*.py")
               if not (path.parent / "__init__.py").exists()]
    assert not missing
