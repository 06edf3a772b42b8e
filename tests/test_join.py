"""``fedhearth join``: a data set that comes after a run becomes its client, as if it had been held out; nothing else changes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from client_app.data.client_data import ClientData, Split
from deploy.cli import main
from deploy.launch import locked
from strategies.held_out import held_out_names
from strategies.registry import METHODS, SPLIT_MODEL
from tests.running import TRAIN, Ran, client_of, contents, digits_of, forget, run
from tests.test_held_out import SEED, held
from tests.thorough import in_turn

NAME = "client-003"


def newcomer(node: Any, seed: int) -> ClientData:
    """The digits that client-003 of a simulation has, at a site of that name."""
    return client_of(*digits_of(3), group="180")


def untested(node: Any, seed: int) -> ClientData:
    return client_of(*digits_of(3, count=TRAIN))


def one_sample(node: Any, seed: int) -> ClientData:
    images, labels = digits_of(3, count=9)
    return client_of(images, labels, train=1)


def other_classes(node: Any, seed: int) -> ClientData:
    data = newcomer(node, seed)
    return ClientData(data.train, data.test, tuple("abcdefghij"))


def more_classes(node: Any, seed: int) -> ClientData:
    data = newcomer(node, seed)
    return ClientData(data.train, data.test, (*data.classes, "ten"))


def larger_images(node: Any, seed: int) -> ClientData:
    def larger(split: Split) -> Split:
        return Split(np.repeat(split.images, 2, axis=2), split.labels, split.ids)

    data = newcomer(node, seed)
    return ClientData(larger(data.train), larger(data.test), data.classes)


def explodes(node: Any, seed: int) -> ClientData:
    images, labels = digits_of(3)
    return client_of(images.astype(np.float32) * 1e36, labels)


def join(folder: Path, data: str = "newcomer", name: str = NAME, *more: str) -> int:
    forget()
    uri = data if ":" in data or not data else f"tests.test_join:{data}"
    return main(["join", "--run", str(folder), "--data", uri, "--name", name, *more])


def files(folder: Path) -> dict[str, str]:
    """Digest of every file of a run, but for its lock."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in (".lock", "lock")}


def joined(folder: Path) -> list[Mapping[str, Any]]:
    return json.loads((folder / "joined.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """HDC-FL of three clients, to be copied."""
    return run(tmp_path_factory.mktemp("finished") / "run", "hdc-fl", clients=3, seed=SEED).folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy, as if the run's folder had been moved since."""
    return Path(shutil.copytree(finished, tmp_path / "moved"))


@pytest.mark.parametrize("method", METHODS)
def test_joining_afterwards_is_being_held_out(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three clients and a fourth held out, or three alone whom the fourth joins later: the same scores, the same bits kept."""
    in_turn(method, "joins", ("joins",), of=3)
    if not getattr(METHODS[method].rule_class(), "serves_newcomers", True):
        pytest.skip("this method cannot serve newcomers")
    assert held_out_names([f"client-00{i}" for i in range(4)], 1, SEED) == (NAME,)
    before: Ran = held(tmp_path / "before", method)
    after = run(tmp_path / "after", method, clients=3, seed=SEED)
    kept = files(after.folder)
    assert join(after.folder) == 0
    line, = joined(after.folder)
    out = before.summary["held_out"]
    assert line["served"] == out["served"][NAME] and line["served_raw"] == out["tails_raw"]["mean"]
    assert (line["client"], line["n_train"], line["n_test"], line["data"]) == (NAME, 24, 8, "tests.test_join:newcomer")
    assert line.get("mixture") == out.get("mixtures", {}).get(NAME)
    for path in sorted((before.folder / "clients" / "test" / NAME).glob("*.safetensors")):
        assert contents(path) == contents(after.folder / "clients" / "test" / NAME / path.name), path.name
    now = files(after.folder)
    assert {name: now[name] for name in kept} == kept
    assert {name for name in now.keys() - kept.keys() if not name.startswith(f"clients/test/{NAME}/")} == {"joined.json"}
    told = capsys.readouterr().out
    assert f"{NAME} joined ({method}, 2 rounds): served accuracy {100 * line['served']:.1f} %" in told
    assert "personal.safetensors" in told and str(after.folder / "joined.json") in told
    # without a client's prior, a prompted model's raw score is the score
    assert ("with BatchNorm statistics as averaged)" in told) == (METHODS[method].model == SPLIT_MODEL)


def test_several_join_and_none_sees_another(folder: Path) -> None:
    """The second of one data set gets what the first got: a newcomer changes nothing of the run."""
    assert [join(folder, name=name) for name in ("new-1", "new-2")] == [0, 0]
    one, two = joined(folder)
    assert [one["client"], two["client"]] == ["new-1", "new-2"]
    assert one["n_train"] == two["n_train"] == 24
    # the order of samples goes by the name, so heads differ a little, and with them the mixtures
    np.testing.assert_allclose(one["mixture"], two["mixture"], atol=0.2)
    assert all((folder / "clients" / "test" / name / "personal.safetensors").exists() for name in ("new-1", "new-2"))


def test_the_state_may_lie_elsewhere(folder: Path, tmp_path: Path) -> None:
    assert join(folder, "newcomer", NAME, "--state-dir", str(tmp_path / "mine")) == 0
    assert (tmp_path / "mine" / "test" / NAME / "personal.safetensors").exists()
    assert not (folder / "clients" / "test" / NAME).exists()


@pytest.mark.parametrize(("data", "scored"), [("untested", False), ("one_sample", True)])
def test_hardly_any_data_is_enough(data: str, scored: bool, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert join(folder, data) == 0
    line, = joined(folder)
    assert (line["served"] is not None) == scored and ("no test images" in capsys.readouterr().out) != scored


@pytest.mark.parametrize(("data", "name", "said"), [
    ("other_classes", NAME, "the data's classes are not the run's: expected its 10 class names in its order"),
    ("more_classes", NAME, "expected its 10 class names in its order, got 11"),
    ("larger_images", NAME, "expected images of 1x8x8 (channels x height x width), as the run had, got 1x16x8"),
    ("newcomer", "client-001", "the run already has a client named 'client-001'; give the new one another --name"),
    ("newcomer", "CLIENT-001", "already has a client named 'client-001'"),
    ("newcomer", "a/b", "a site name must be 1 to 64 letters"),
    ("npz:/no/such/file.npz", NAME, "--data: "),
    ("", NAME, "--data names no data: expected the new client's own"),
    ("tests.no_such:load", NAME, "--data: the data loader cannot be imported"),
])
def test_what_cannot_join_is_refused_and_leaves_no_trace(data: str, name: str, said: str, folder: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    before = files(folder)
    assert join(folder, data, name) == 2
    assert said in capsys.readouterr().err
    assert files(folder) == before


def test_images_of_several_sizes_are_told_what_a_join_can_do(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run's advice is the setting image-size; a join has no settings."""
    for place, side in (("a/0.png", 8), ("a/1.png", 9), ("b/0.png", 8)):
        path = tmp_path / "mixed" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((side, side), np.uint8)).save(path)
    assert join(folder, f"folder:{tmp_path / 'mixed'}") == 2
    told = capsys.readouterr().err
    assert "--data: the images differ in size, and the run scaled none" in told and "set image-size" not in told


def test_who_has_joined_has_its_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert join(folder, name="new") == 0
    assert join(folder, name="New") == 2 and "already has a client named 'new'" in capsys.readouterr().err
    assert len(joined(folder)) == 1


def test_a_held_out_clients_name_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = held(tmp_path, "fedavg")
    assert join(ran.folder) == 2 and f"already has a client named '{NAME}'" in capsys.readouterr().err


def test_a_client_that_diverges_does_not_join(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(folder)
    assert join(folder, "explodes") == 1
    assert "client-003 could not join: TrainingDiverged" in capsys.readouterr().err
    assert files(folder) == before


@pytest.mark.parametrize(("broken", "said"), [
    ("model", "summary.json does not say what classes and images the run had"),
    ("unfinished", "is not finished, and a client can only join after its last round; finish it first: fedhearth run --resume"),
    ("no run", "holds no run"), ("no checkpoint", "the last checkpoint of the run"), ("older", "written by an older version"),
    ("summary", "cannot read"), ("joined", "cannot read"),
    ("table", "cannot read who the clients of the run are"), ("lines", "cannot read who the clients of the run are"),
])
def test_a_run_that_nobody_can_join_says_why(broken: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = folder / "summary.json"
    match broken:
        case "unfinished":
            summary.unlink()
        case "no run":
            (folder / "run.json").unlink()
        case "no checkpoint":
            (folder / "checkpoints" / "round-00002.safetensors").unlink()
        case "older":
            summary.write_text(json.dumps({k: v for k, v in json.loads(summary.read_text()).items() if k != "model"}))
        case "summary":
            summary.write_text("{")
        case "model":
            summary.write_text('{"model": 3}')
        case "joined":
            (folder / "joined.json").write_text("{}")
        case "table":
            (folder / "clients.csv").unlink()
        case "lines":
            (folder / "joined.json").write_text("[7]")
    assert join(folder) == 2
    assert said in capsys.readouterr().err


def test_a_run_that_goes_on_is_not_joined(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with locked(folder):
        assert join(folder) == 2
    assert "another process is writing" in capsys.readouterr().err


def test_a_state_folder_that_is_none_is_told_without_a_traceback(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert join(folder, "newcomer", NAME, "--state-dir", str(tmp_path / "file")) == 1
    told = capsys.readouterr().err
    assert "this site's state cannot be read or written (Not a directory); check the disk and its permissions" in told
    assert f"fedhearth: {NAME} could not join: StoreError" in told and "Traceback" not in told
    assert (tmp_path / "file").read_text() == "mine" and not (folder / "joined.json").exists()
