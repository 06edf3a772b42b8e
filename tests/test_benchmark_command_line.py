"""A result that is there passes for a run of its own settings and for no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.command_line import OtherSettings, command, there, words_of


def test_settings_become_words_of_the_command_line() -> None:
    assert words_of({"lr": 0.1, "logit-prior": True}) == ["-c", "lr=0.1", "-c", "logit-prior=true"]


def test_only_a_run_of_the_same_settings_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "fedavg_seed_0.json"
    assert there(path, {"lr": 0.1}) is None
    path.write_text(json.dumps({"settings": {"lr": 0.1}, "served": {"mean": 0.5}}))
    assert there(path, {"lr": 0.1}) == {"settings": {"lr": 0.1}, "served": {"mean": 0.5}}
    with pytest.raises(OtherSettings, match=r"fedavg_seed_0.json is a run of other settings \(lr: 0.1, not 0.2\): delete it"):
        there(path, {"lr": 0.2})
    with pytest.raises(OtherSettings, match=r"\(seed: None, not 3\)"):
        there(path, {"lr": 0.1, "seed": 3})


def test_what_a_command_complains_of_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"run -c method=none \.\.\.: .*method"):
        command("run", "-c", "method=none")
