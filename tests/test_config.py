"""Run config: pyproject repeats the dataclasses' defaults, and what cannot be run is refused in words."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import client_app.main
import server_app.main
from deploy import ray_client, ray_server
from deploy.flower_app import ON_RAY, OURS, Apps, app_description, toml_lines
from deploy.overrides import parse_overrides
from server_app.reproduce import command
from strategies.config import ConfigError, RunConfig, Scalar
from strategies.registry import METHODS, default_items, items_of_all, parse_run_config

PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Scalar]:
    out: dict[str, Scalar] = {}
    for key, value in table.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out


def test_pyproject_lists_every_key_with_its_default_and_type() -> None:
    listed, expected = flat(PYPROJECT["tool"]["flwr"]["app"]["config"]), default_items()
    assert listed == expected
    assert {key: type(value) for key, value in listed.items()} == {key: type(value) for key, value in expected.items()}


@pytest.mark.parametrize("apps", [OURS, ON_RAY])
def test_the_generated_bundle_has_the_same_config_and_apps(apps: Apps) -> None:
    ours, generated = PYPROJECT["tool"]["flwr"]["app"], tomllib.loads(app_description(apps))["tool"]["flwr"]["app"]
    assert flat(generated["config"]) == flat(ours["config"]) and generated["publisher"] == ours["publisher"]
    assert ours["components"] == {"serverapp": OURS.server, "clientapp": OURS.client}
    assert generated["components"] == {"serverapp": apps.server, "clientapp": apps.client}
    # those on Ray bundle messages, and hand them to the ones that a deployment runs
    assert ray_client.clients is client_app.main.app and ray_server.serve is server_app.main.serve
    assert tomllib.loads(app_description(apps))["project"]["version"] == PYPROJECT["project"]["version"]


def test_flower_is_pinned_to_the_last_grpc_release() -> None:
    assert "flwr[simulation]>=1.39,<1.40" in PYPROJECT["project"]["dependencies"]


@pytest.mark.parametrize("method", METHODS)
def test_settings_survive_being_written_down(method: str) -> None:
    settings = parse_run_config({"method": method, "rounds": 3, "lr": 1})
    assert settings.run.rounds == 3 and settings.run.lr == 1.0 and isinstance(settings.run.lr, float)
    assert parse_run_config(items_of_all(settings)) == settings


def test_a_bare_number_serves_as_text() -> None:
    settings = parse_run_config({"method": "pep-fedpt", "pep-fedpt.class-layers": 5, "weights-dir": 2026})
    assert settings.own.layers == (5,) and settings.run.weights_dir == "2026"


@pytest.mark.parametrize(("given", "expected"), [
    ({"weights-dir": True}, "weights-dir must be text, got True (true or false)"),
    ({"clinets": 3}, "unknown key 'clinets'; did you mean 'clients'?"),
    ({"hdc-fl.temprature": 1.0}, "did you mean 'hdc-fl.temperature'?"),
    ({"method": "fedpers"}, "did you mean 'fedper'?"),
    ({"partition": "rotations"}, "did you mean 'rotation'?"),
    ({"clients": 3.5}, "clients must be a whole number, got 3.5"),
    ({"clients": True}, "clients must be a whole number"),
    ({"clients": "3"}, "clients must be a whole number, got '3' (text)"),
    ({"resume": 1}, "resume must be true or false"),
    ({"clients": 0}, "clients must be 1 or more, got 0"),
    ({"alpha": 0.0}, "alpha must be a finite number above 0, got 0.0"),
    ({"alpha": float("nan")}, "alpha must be a finite number above 0"),
    ({"fraction": 1.5}, "fraction must be above 0 and at most 1"),
    ({"test-fraction": 1.0}, "test-fraction must be at least 0 and below 1"),
    ({"run-id": "../up"}, "run-id must be 1 to 64"),
    ({"method": "fedavg", "hdc-fl.signal": "haed"}, "hdc-fl.signal must be one of descriptor, head"),
])
def test_what_cannot_be_run_is_refused(given: dict[str, Scalar], expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_run_config(given)
    assert expected in str(refused.value)


def test_command_line_values_are_toml_scalars_and_bare_words() -> None:
    given = parse_overrides(["method=fedper", "rounds=3", "lr=1e-2", "resume=false", 'dataset="npz:a b.npz"', "hdc-fl.temperature=inf",
                             "out=/tmp/with space=and equals", "state-dir="])
    assert given == {"method": "fedper", "rounds": 3, "lr": 0.01, "resume": False, "dataset": "npz:a b.npz",
                     "hdc-fl.temperature": float("inf"), "out": "/tmp/with space=and equals", "state-dir": ""}
    assert parse_overrides(["rounds=3", "rounds=4"]) == {"rounds": 4}
    assert parse_overrides(["lr=.03", "alpha=1.", "rho=-.5e1", "dataset=a.b"]) == {"lr": 0.03, "alpha": 1.0, "rho": -5.0, "dataset": "a.b"}
    assert parse_overrides(["alpha=[1]", "dataset=my_data:load"]) == {"alpha": "[1]", "dataset": "my_data:load"}
    for wrong in ("rounds", "=3", ""):
        with pytest.raises(ConfigError, match="KEY=VALUE"):
            parse_overrides([wrong])


def test_the_command_a_report_writes_down_can_be_given_back() -> None:
    items = default_items() | {"method": "fedper", "dataset": "npz:a b.npz", "rounds": 3, "seed": 7}
    import shlex

    words = shlex.split(command(items))
    assert words[:3] == ["fedhearth", "run", "-c"]
    assert parse_overrides(words[3:]) == {"method": "fedper", "dataset": "npz:a b.npz", "rounds": 3, "seed": 7}


def test_any_scalar_survives_toml() -> None:
    items: dict[str, Scalar] = {"out": 'a "b" \\ é\n\x7f', "lr": 1e-05, "hdc-fl.temperature": float("inf"), "resume": True, "seed": 2**62}
    assert flat(tomllib.loads(toml_lines(items))) == items


def test_a_run_config_has_no_field_of_another_kind() -> None:
    assert {type(value) for value in default_items().values()} <= {bool, int, float, str}
    assert RunConfig().method in METHODS
