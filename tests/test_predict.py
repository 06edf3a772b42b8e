"""``fedhearth predict``: the probabilities that the scored model gives, and a plain word about everything else."""

from __future__ import annotations

import csv
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.special import softmax

from client_app.data.images import pixels
from client_app.personal import load_personal
from client_app.personal_facts import PersonalFacts
from deploy.cli import main
from deploy.predict import BATCH
from deploy.prediction_input import Item, converted, items
from tests.personal_cases import Kept, kept_run, rewrite

FACTS = PersonalFacts("fedper", "cnn", 4, ("thin", "wide"), (1, 8, 8), "uint8")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return kept_run(tmp_path_factory.mktemp("run"), "hdc-fl")


@pytest.fixture
def pictures(kept: Kept, tmp_path: Path) -> tuple[Path, np.ndarray]:
    """client-001's 8 test images as PNG files, and the probabilities of the scored model."""
    images, logits = kept.last_scored(1)
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image[0]).save(folder / f"{number}.png")
    return folder, softmax(logits, 1)


def predict(kept: Kept, *words: str, client: str = "client-001") -> int:
    return main(["predict", "--run", str(kept.ran.folder), "--client", client, *words])


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_a_row_an_image(kept: Kept, pictures: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str]) -> None:
    folder, expected = pictures
    assert predict(kept, str(folder)) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[0] == "file,class,probability," + ",".join(f"p({name})" for name in range(10)) + ",error"
    rows = rows_of(told.out)
    assert [row["file"] for row in rows] == [str(folder / f"{number}.png") for number in range(8)] and told.err == ""
    for row, p in zip(rows, expected, strict=True):
        found = np.array([float(row[f"p({name})"]) for name in range(10)])
        np.testing.assert_allclose(found, p, atol=6e-7)
        assert row["class"] == str(p.argmax()) and float(row["probability"]) == found.max() and row["error"] == ""


def test_json_and_arrays_say_the_same(kept: Kept, pictures: tuple[Path, np.ndarray], tmp_path: Path,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = pictures
    images, _ = kept.last_scored(1)
    np.savez(tmp_path / "flat.npz", images=images[:, 0])
    np.savez(tmp_path / "last.npz", x=images.transpose(0, 2, 3, 1))
    answers = []
    for words in ([str(folder)], [f"npz:{tmp_path / 'flat.npz'}"], [f"npz:{tmp_path / 'last.npz'}"]):
        assert predict(kept, *words, "--format", "json") == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert predict(kept, str(folder)) == 0
    rows = rows_of(capsys.readouterr().out)
    assert [row["file"] for row in answers[1]] == [f"{tmp_path / 'flat.npz'}[{number}]" for number in range(8)]
    for row, *others in zip(rows, *answers, strict=True):
        for other in others:
            assert other["class"] == row["class"] and other["probability"] == float(row["probability"]) and "error" not in other
            assert other["probabilities"] == {str(name): float(row[f"p({name})"]) for name in range(10)}


def test_one_bad_file_costs_one_row(kept: Kept, pictures: tuple[Path, np.ndarray], tmp_path: Path,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    folder, expected = pictures
    whole = (folder / "2.png").read_bytes()
    (folder / "1.png").write_bytes(b"no image at all")
    (folder / "2.png").write_bytes(whole[:len(whole) // 2])
    Image.fromarray(np.zeros((10, 20), np.uint8)).save(folder / "3.png")
    (folder / "empty").mkdir()
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 not a zip")
    np.savez(tmp_path / "two.npz", a=np.zeros((1, 8, 8), np.uint8), b=np.zeros((1, 8, 8), np.uint8))
    np.savez(tmp_path / "float.npz", x=np.zeros((1, 1, 8, 8), np.float32))
    words = [str(folder), str(folder / "empty"), str(tmp_path / "gone.png"), *(f"npz:{tmp_path / n}.npz" for n in ("bad", "two", "float"))]
    assert predict(kept, *words) == 1
    told = capsys.readouterr()
    rows = rows_of(told.out)
    assert [row["error"] for row in rows] == [
        "", "cannot be read as an image (UnidentifiedImageError)", "cannot be read as an image (OSError)",
        "is 20 x 10 pixels, and this model takes 8 x 8; its run scaled nothing, so scale the image first, or give --resize",
        "", "", "", "", "this folder holds no image", "no such file", "cannot be read as an npz file (BadZipFile)",
        "expected images (n, H, W) or (n, channels, H, W) under one of the keys images, x, x_test",
        "expected uint8 pixels of shape (1, 8, 8), got float32 of shape (1, 8, 8)"]
    assert told.err == "fedhearth: 8 of 13 could not be used; their rows say why\n"
    for number in (0, 4, 5, 6, 7):
        assert rows[number]["class"] == str(expected[number].argmax())
    assert predict(kept, *words, "--format", "json") == 1
    assert [row.get("error", "") for row in json.loads(capsys.readouterr().out)] == [row["error"] for row in rows]


def test_many_images_go_through_in_parts(kept: Kept, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, logits = kept.last_scored(1)
    count = 2 * BATCH + 5
    np.savez(tmp_path / "none.npz", x=images[:0])
    assert predict(kept, f"npz:{tmp_path / 'none.npz'}") == 1 and "there was no image to classify" in capsys.readouterr().err
    np.savez(tmp_path / "many.npz", x=np.tile(images, (count // 8 + 1, 1, 1, 1))[:count])
    assert predict(kept, f"npz:{tmp_path / 'many.npz'}") == 0
    found = [row["class"] for row in rows_of(capsys.readouterr().out)]
    assert found == [str(logits[number % 8].argmax()) for number in range(count)]


def test_the_file_is_put_in_place_once_it_is_whole(kept: Kept, pictures: tuple[Path, np.ndarray], tmp_path: Path,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "answers" / "a.csv"
    assert predict(kept, str(pictures[0]), "--out", str(out)) == 2
    assert "--out must name a file in a folder that exists" in capsys.readouterr().err
    out.parent.mkdir()
    assert predict(kept, str(pictures[0]), "--out", str(out)) == 0
    assert capsys.readouterr().out == "" and len(rows_of(out.read_text(encoding="utf-8"))) == 8
    assert predict(kept, str(pictures[0]), "--out", str(out.parent)) == 2
    assert [path.name for path in out.parent.iterdir()] == ["a.csv"]


# --- images of other kinds


def test_images_are_converted_by_the_run_s_rules(tmp_path: Path) -> None:
    """The middle square is scaled; colour becomes grey; by ``client_app.data.images``, whatever that does."""
    sides = np.full((10, 30, 3), 200, np.uint8)
    sides[:, 8:22] = 40  # wider than the middle square, since an antialiased scaling looks a little beyond its edges
    Image.fromarray(sides).save(tmp_path / "sides.png")
    scaled = PersonalFacts("fedper", "cnn", 4, ("thin", "wide"), (1, 8, 8), "uint8", image_size=8)
    np.testing.assert_array_equal(converted(Item("", tmp_path / "sides.png"), scaled), np.full((1, 8, 8), 40, np.uint8))
    noise = np.random.default_rng(0).integers(0, 256, (17, 13, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    expected = pixels(tmp_path / "noise.png", 1, 8)
    np.testing.assert_array_equal(converted(Item("", tmp_path / "noise.png"), scaled), expected)
    np.testing.assert_array_equal(converted(Item("", noise.transpose(2, 0, 1)), scaled), expected)
    np.testing.assert_array_equal(converted(Item("", tmp_path / "noise.png"), FACTS, resize=True), expected)
    assert "is 13 x 17 pixels" in str(converted(Item("", tmp_path / "noise.png"), FACTS))


def test_float_arrays_are_used_as_they_are(tmp_path: Path) -> None:
    facts = PersonalFacts("fedper", "cnn", 4, ("thin", "wide"), (1, 8, 8), "float32")
    image = np.linspace(-2, 2, 64).reshape(1, 8, 8)
    np.testing.assert_array_equal(converted(Item("", image), facts), image.astype(np.float32))
    assert "only its data loader knows" in str(converted(Item("", tmp_path / "a.png"), facts))
    assert "got uint8 of shape (1, 8, 8)" in str(converted(Item("", np.zeros((1, 8, 8), np.uint8)), facts))
    for bad in (np.nan, np.inf, 1e39):
        assert converted(Item("", np.where(image == 2, bad, image)), facts) == "holds NaN or infinity: expected finite numbers"


def test_folders_are_read_in_order_with_all_in_them(tmp_path: Path) -> None:
    for name in ("b.PNG", "a/z.jpg", "a/note.txt", "c.webp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [Path(item.name).relative_to(tmp_path).as_posix() for item in items([str(tmp_path)])] == ["a/z.jpg", "b.PNG", "c.webp"]


# --- which model


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["predict", *words, "x.png"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("fedhearth: ") and told.err.count("\n") == 1
    return told.err


def test_a_client_that_is_not_there(kept: Kept, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(kept.ran.folder)
    told = refused(capsys, "--run", folder, "--client", "client-01")
    assert "no personal model of 'client-01'" in told and "(there are: client-000, client-001)" in told and "did you mean" in told
    assert "starting with a letter" in refused(capsys, "--run", folder, "--client", "../client-000")
    assert "holds no run" in refused(capsys, "--run", str(tmp_path), "--client", "client-000")
    assert "say where the model lies" in refused(capsys, "--client", "client-000")
    assert "no personal model lies under" in refused(capsys, "--state-dir", str(tmp_path), "--client", "client-000")
    assert "at its site" in refused(capsys, "--run", folder, "--state-dir", str(tmp_path), "--client", "client-000")
    assert "--device" in refused(capsys, "--run", folder, "--client", "client-000", "--device", "cuda:99")


@pytest.fixture
def moved(kept: Kept, tmp_path: Path) -> Path:
    """The run's folder, at another place."""
    return Path(shutil.copytree(kept.ran.folder, tmp_path / "moved run"))


def test_a_run_that_is_not_finished(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (moved / "summary.json").unlink()
    (moved / "clients" / "test" / "client-000" / "personal.safetensors").unlink()
    told = refused(capsys, "--run", str(moved), "--client", "client-000")
    assert "is not finished" in told and f"fedhearth run --resume '{moved}'" in told


def test_a_damaged_model(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = moved / "clients" / "test" / "client-000" / "personal.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    told = refused(capsys, "--run", str(moved), "--client", "client-000")
    assert "the personal model is damaged" in told and str(path) in told
    rewrite(path.parent.parent / "client-001", method="no-such")
    assert "unknown method" in refused(capsys, "--run", str(moved), "--client", "client-001")


def test_a_site_s_own_state_needs_no_run(kept: Kept, pictures: tuple[Path, np.ndarray], tmp_path: Path,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    """The newest run counts unless one is named; a run's folder is found again after a move."""
    state = tmp_path / "state"
    for run, client, age in (("first", 1, 100.0), ("second", 0, 50.0)):
        folder = state / run / "ward"
        shutil.copytree(kept.folder(client), folder)
        os.utime(folder / "personal.safetensors", (time.time() - age,) * 2)
    answers: dict[str, Any] = {}
    for name, words in {"newest": (), "first": ("--run-id", "first"), "second": ("--run-id", "second")}.items():
        assert main(["predict", "--state-dir", str(state), "--client", "ward", *words, str(pictures[0])]) == 0
        answers[name] = rows_of(capsys.readouterr().out)
    assert predict(kept, str(pictures[0])) == 0
    assert rows_of(capsys.readouterr().out) == answers["first"] != answers["second"] == answers["newest"]
    assert "there are: ward" in refused(capsys, "--state-dir", str(state), "--client", "war", "--run-id", "first")
    assert "no personal model lies" in refused(capsys, "--state-dir", str(state), "--client", "ward", "--run-id", "third")


def test_a_moved_run_is_found_again(kept: Kept, moved: Path, pictures: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(moved / "clients" / "test" / "client-000")
    assert "(there are: client-001)" in refused(capsys, "--run", str(moved), "--client", "client-000")
    assert main(["predict", "--run", str(moved), "--client", "client-001", str(pictures[0])]) == 0


# --- what a model says of itself


@pytest.mark.parametrize(("wrong", "told"), [
    ({"classes": []}, "one class name"), ({"classes": [1]}, "one class name"), ({"input_shape": [8, 8]}, "three numbers"),
    ({"input_shape": [1, 8, 0]}, "three numbers"), ({"dtype": "int8"}, "dtype uint8 or float32"), ({"classes": None}, "damaged"),
])
def test_facts_are_checked(wrong: dict[str, Any], told: str) -> None:
    from client_app.personal_facts import PersonalError

    with pytest.raises(PersonalError, match=told):
        PersonalFacts.from_json({**FACTS.to_json(), **wrong})
    with pytest.raises(PersonalError, match="damaged"):
        PersonalFacts.from_json({"method": "fedper"})


def test_facts_survive_json(kept: Kept) -> None:
    facts = load_personal(kept.folder()).facts
    assert PersonalFacts.from_json(json.loads(json.dumps({**facts.to_json(), "from a later version": 1}))) == facts


@pytest.mark.parametrize("words", [["predict"], ["export", "--format", "safetensors"]])
def test_what_is_no_file_is_not_replaced_by_one(kept: Kept, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "pipe"
    os.mkfifo(out)
    given = [*words, "--run", str(kept.ran.folder), "--client", "client-001", "--out", str(out)]
    assert main([*given, *(["some.png"] if words == ["predict"] else [])]) == 2
    assert f"--out must name a file in a folder that exists, got {out}" in capsys.readouterr().err
    assert out.is_fifo() and [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_pipes_names_that_are_no_text_and_no_name_at_all(kept: Kept, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"\xff.png")).write_bytes(b"no image")
    words = ["", str(tmp_path / "pipe"), f"npz:{tmp_path / 'pipe'}", str(tmp_path / os.fsdecode(b"\xff.png"))]
    reasons = ["no such file", "cannot be read as an image (ValueError)", "cannot be read as an npz file (ValueError)",
               "cannot be read as an image (UnidentifiedImageError)"]
    for form in ("csv", "json"):
        assert predict(kept, *words, "--format", form, "--out", str(tmp_path / form)) == 1
    text = (tmp_path / "csv").read_text(encoding="utf-8")
    assert [row["error"] for row in rows_of(text)] == reasons and rows_of(text)[3]["file"] == f"{tmp_path}/\\udcff.png"
    rows = json.loads((tmp_path / "json").read_text(encoding="utf-8"))
    # in JSON it is the very name again
    assert [row["error"] for row in rows] == reasons and rows[3]["file"] == words[3]
    assert predict(kept, words[3], "--device", "gpu") == 2
    assert "--device: expected cpu, cuda or cuda:NUMBER, got 'gpu'" in capsys.readouterr().err
