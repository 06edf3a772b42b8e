"""Imports run one way, strictly local code stays local, and nothing grows past the house's limits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("models", "strategies", "client_app", "server_app", "deploy")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
OURS = set(PACKAGES)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> set[str]:
    """Dotted names of every module that ``path`` imports, at any depth of the code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)} imports relatively"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def tops(path: Path) -> set[str]:
    return {module.partition(".")[0] for module in imports(path)}


def inside(package: str) -> Iterator[Path]:
    return (path for path in FILES if name(path).startswith(f"{package}/"))


# package -> packages of ours it may import beside itself
ALLOWED = {"models": set(), "strategies": set(), "client_app": {"models", "strategies"},
           "server_app": {"models", "strategies"}, "deploy": OURS}


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_run_one_way(package: str) -> None:
    wrong = {name(path): sorted(tops(path) & OURS - ALLOWED[package] - {package}) for path in inside(package)}
    assert not {path: found for path, found in wrong.items() if found}


def test_the_algorithm_half_knows_neither_torch_nor_flower() -> None:
    flower = {name(path) for path in inside("strategies") if "flwr" in tops(path)}
    assert flower == {f"strategies/{stem}.py" for stem in ("adapter", "sent_bases", "thin", "wire")}
    assert not [name(path) for path in inside("strategies") if "torch" in tops(path)]
    assert not [name(path) for path in inside("models") if "flwr" in tops(path)]


def test_strictly_local_code_knows_no_flower_and_only_clients_use_it() -> None:
    assert list(inside("client_app/local"))
    assert not [name(path) for path in inside("client_app/local") if tops(path) & {"flwr", "strategies"}]
    outside = [path for path in FILES if not name(path).startswith("client_app/")]
    assert not [name(path) for path in outside if any(m.startswith("client_app.local") for m in imports(path))]


def test_only_the_boundary_builds_what_leaves_a_client() -> None:
    builders = [name(path) for path in inside("client_app")
                if any(isinstance(node, ast.Name | ast.Attribute) and getattr(node, "id", getattr(node, "attr", "")) in (
                    "ArrayRecord", "pack", "pack_slot") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))]
    assert builders == ["client_app/boundary.py"]


def test_only_the_node_reads_who_a_client_is() -> None:
    readers = [name(path) for package in ("client_app", "server_app", "strategies", "models") for path in inside(package)
               if "node_config.get(" in path.read_text(encoding="utf-8")]
    assert readers == ["client_app/node.py"]


@pytest.mark.parametrize("path", FILES, ids=name)
def test_size_and_names(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    assert not {"util", "utils", "helper", "helpers", "manager", "process"} & set(path.stem.split("_"))
    # Flower drops such files from the bundle without a word
    assert not path.stem.startswith("test_") and not path.stem.endswith("_test")
    tree = ast.parse(text)
    assert not text.strip() or ast.get_docstring(tree), "every module says what it is"
    long = [f"{node.name}: {node.end_lineno - node.lineno + 1} lines" for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= 60]
    assert not long
