"""Damaged and contradictory data of two dozen kinds: how each is made, and what must come of it.

A kind is tried in two ways (``tests/test_data_checks.py``): by ``fedhearth data check`` on the machine where it lies, and in a run in
which the site ``ward-b`` has it and ``ward-a`` has sound data. No kind may show itself only after round 1, and of its labels,
paths and values nothing may reach the server.

====================  ==========================================================  =======================================
kind                  what is wrong                                               outcome
====================  ==========================================================  =======================================
cut-archive           an npz file of which half is there                          stop: the file is damaged
cut-jpeg              an image file that is cut short                             stop: cannot be read; named at home
no-image              a text file called .png                                     stop: cannot be read; named at home
skipped-image         the same with ``bad-images = skip``                         runs; "skipped" is counted
missing-file          a table with a path where no image is                       stop: cannot be read; named at home
mixed-sizes           a folder of images of two sizes                             stop: set image-size
mixed-shapes          training and test images of different sizes                 stop: one shape
grey-mix              grey images among coloured ones                             runs; "grey-mix" is counted
other-channels        coloured images where the other site has grey ones          stop: the two sites are named
other-names           other class names than the other site                       stop: the two sites are named
empty-name            a class whose name is a blank                               stop: give every class a name
twin-names            two class names that differ in case and a blank             stop: give one class one name
label-beyond          a label beyond the last class                               stop: out of range
label-negative        a label below 0                                             stop: out of range
label-fraction        a label that is no whole number                             stop: expected integers
label-nan             a label that is no number                                   stop: expected integers
nan-pixel             a pixel that is no number                                   stop: NaN or infinity
tiny-images           images smaller than the model's smallest side               stop: the model is named
test-is-train         every test image is a training image                        stop: scores would say nothing
leaking-test          some test images are training images                        runs; "test-in-train" is counted
two-labels            the same image under two labels                             runs; "duplicates" is counted
bytes-as-floats       0 to 255 saved as floats                                    runs; "scale" is counted
not-normalised        float pixels from -500 to 500                               runs; "scale" is counted
blank-images          images of one colour                                        runs; "constant" is counted
one-sample            one training image, nothing to test with                    runs; "unscored" is counted
one-in-a-hundred      one class with nearly all images, one class with none       runs; known at home only
failing-loader        a loader whose error tells a label and a path               stop: its words stay at home
====================  ==========================================================  =======================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from client_app.data import ClientData, DataError
from client_app.data.sources import DataNode

CLASSES = ("kq-melanoma", "kq-naevus", "kq-wart")
PATIENT = "kq-patient-17"
FOLDER = "kq-secret-ward"
VALUE = 91377  # a label or a pixel that nothing else in a run looks like
SECRETS = ("kq-", "Kq-", "91377", "secret", "patient", "melanoma", "naevus")


@dataclass(frozen=True)
class Damage:
    """One kind. ``make(folder)`` writes it and returns its URI.

    Attributes
    ----------
    code : what ``fedhearth data check`` exits with. says : what it must say.
    told : what the server is told and the run ends with, "" if the run goes on; then ``warned`` are the kinds it counts.
    settings : of the run and the check. words : further arguments of the check. partner : the other site's data.
    """

    name: str
    make: Callable[[Path], str]
    code: int
    says: tuple[str, ...]
    told: str = ""
    warned: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    partner: Callable[[Path], str] | None = None


def noise(n: int, seed: int = 0, shape: tuple[int, ...] = (8, 8)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape)).astype(np.uint8)


def npz(**changed: Any) -> Callable[[Path], str]:
    """A sound file of 24 training and 9 test images of 3 classes, with what ``changed`` says in its place."""

    def make(folder: Path) -> str:
        arrays: dict[str, Any] = {"x_train": noise(24), "y_train": np.arange(24) % 3, "x_test": noise(9, 1), "y_test": np.arange(9) % 3,
                                  "class_names": np.array(CLASSES)} | changed
        path = folder / f"{PATIENT}.npz"
        np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
        return f"npz:{path}"

    return make


def images(n: int = 24, side: Callable[[int], int] = lambda i: 8, grey: Callable[[int], bool] = lambda i: False) -> Callable[[Path], str]:
    """A folder of ``n`` sound PNG files, a sub-folder a class."""

    def make(folder: Path) -> str:
        for i in range(n):
            place = folder / "scans" / CLASSES[i % 3]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(noise(1, i, (side(i), side(i), *(() if grey(i) else (3,))))[0]).save(place / f"{PATIENT}-{i:02}.png")
        return f"folder:{folder / 'scans'}"

    return make


def spoilt(make: Callable[[Path], str], name: str, spoil: Callable[[Path], None]) -> Callable[[Path], str]:
    """What ``make`` writes, with ``spoil`` done to the first file called ``name``."""

    def spoiling(folder: Path) -> str:
        uri = make(folder)
        spoil(next(folder.rglob(name)))
        return uri

    return spoiling


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def as_text(path: Path) -> None:
    path.write_text("no image")


def as_jpeg_cut_short(path: Path) -> None:
    with Image.open(path) as image:
        image.resize((64, 64)).resize((8, 8)).save(path.with_suffix(".jpg"), quality=95)
    path.unlink()
    cut = path.with_suffix(".jpg")
    cut.write_bytes(cut.read_bytes()[:-40])


def table(folder: Path) -> str:
    """A CSV table of the images of a sound folder, with one row of a file that is not there."""
    images()(folder)
    rows = [f"{path.relative_to(folder)},{path.parent.name}" for path in sorted(folder.rglob("*.png"))]
    (folder / "list.csv").write_text("\n".join(["image,label", *rows, f"scans/{PATIENT}-gone.png,{CLASSES[0]}", ""]))
    return f"table:{folder / 'list.csv'}"


def failing(node: DataNode, seed: int) -> ClientData:
    raise DataError(f"{FOLDER}/{PATIENT} has the label {CLASSES[0]} = {VALUE}")


def changed_at(array: np.ndarray, place: Any, value: Any) -> np.ndarray:
    array = array.copy()
    array[place] = value
    return array


LABELS, PIXELS = np.arange(24) % 3, noise(24).astype(np.float32) / 128 - 1
UNREADABLE = "of the images cannot be read; run `fedhearth data check`"

KINDS = (
    Damage("cut-archive", spoilt(npz(), "*.npz", halve), 1, ("STOP  reading", "npz file is damaged", PATIENT),
           "the npz file is damaged"),
    Damage("cut-jpeg", spoilt(images(), f"{PATIENT}-03.png", as_jpeg_cut_short), 1, ("STOP  unreadable", f"{PATIENT}-03.jpg"), UNREADABLE,
           partner=images()),
    Damage("no-image", spoilt(images(), f"{PATIENT}-04.png", as_text), 1,
           ("STOP  unreadable", f"{PATIENT}-04.png"), UNREADABLE, partner=images()),
    Damage("skipped-image", spoilt(images(), f"{PATIENT}-04.png", as_text), 0,
           ("WARN  unreadable", f"{PATIENT}-04.png"), warned=("skipped",), settings={"bad-images": "skip"}, partner=images()),
    Damage("missing-file", table, 1, ("STOP  unreadable", f"{PATIENT}-gone.png"), UNREADABLE, partner=images()),
    Damage("mixed-sizes", images(side=lambda i: 8 + i % 2), 1, ("STOP  reading", "set image-size"), "set image-size", partner=images()),
    Damage("mixed-shapes", npz(x_test=noise(9, 1, (9, 9))), 1, ("STOP  reading", "images of one shape"), "images of one shape"),
    Damage("grey-mix", images(grey=lambda i: i % 3 == 0), 0, ("WARN  grey-mix", "8 of 24 (33.3 %) are grey", f"{PATIENT}-06.png"),
           warned=("grey-mix",), partner=images()),
    Damage("other-channels", npz(x_train=noise(24, 0, (3, 8, 8)), x_test=noise(9, 1, (3, 8, 8))), 1,
           ("STOP  agreement", "(3, 8, 8) here and (1, 8, 8) there"),
           "image shape: ward-a says (1, 8, 8), ward-b says (3, 8, 8); all sites need", words=("--expect",)),
    Damage("other-names", npz(class_names=np.array(["kq-melanoma", "kq-wart", "kq-naevus"])), 1,
           ("STOP  agreement", "label 1 is 'kq-wart' here and 'kq-naevus' there"), "clients differ in their class names: ward-a says",
           words=("--classes", ",".join(CLASSES))),
    Damage("empty-name", npz(class_names=np.array(["kq-naevus", " ", "kq-wart"])), 1,
           ("STOP  class-names", "a class has an empty name", "label 1"), "a class has an empty name: give every class a name"),
    Damage("twin-names", npz(class_names=np.array(["kq-naevus", "kq-wart", "Kq-Naevus "])), 1,
           ("STOP  class-names", "'kq-naevus' = 'Kq-Naevus '"), "two class names differ in upper and lower case"),
    Damage("label-beyond", npz(y_train=changed_at(LABELS, 5, VALUE)), 1, ("STOP  rows", f"y_train[5] = {VALUE}"), "label out of range"),
    Damage("label-negative", npz(y_test=changed_at(np.arange(9) % 3, 2, -VALUE)), 1, ("STOP  rows", f"y_test[2] = -{VALUE}"),
           "label out of range"),
    Damage("label-fraction", npz(y_train=changed_at(LABELS.astype(float), 7, VALUE + 0.5)), 1, ("STOP  rows", f"y_train[7] = {VALUE}.5"),
           "key `y_train`: expected integers"),
    Damage("label-nan", npz(y_train=changed_at(LABELS.astype(float), 7, np.nan)), 1, ("STOP  rows", "y_train[7] = nan"),
           "key `y_train`: expected integers"),
    Damage("nan-pixel", npz(x_train=changed_at(PIXELS, (3, 0, 0), np.nan), x_test=PIXELS[:9] / 2), 1, ("STOP  rows", "x_train[3]"),
           "an image holds NaN or infinity"),
    Damage("tiny-images", npz(x_train=noise(24, 0, (3, 3)), x_test=noise(9, 1, (3, 3))), 1, ("STOP  model", "'cnn'", "4 pixels or more"),
           "an image for model 'cnn' must be"),
    Damage("test-is-train", npz(x_test=noise(24)[:9]), 1, ("STOP  test-in-train", "9 of 9 test images (100.0 %)", "x_test[0] = x_train[0]"),
           "every test image is a training image too", settings={"test-split": "official"}),
    Damage("leaking-test", npz(x_test=np.concatenate([noise(24)[:3], noise(6, 1)])), 0,
           ("WARN  test-in-train", "3 of 9 test images (33.3 %)", "x_test[2] = x_train[2]"), warned=("test-in-train",),
           settings={"test-split": "official"}),
    Damage("two-labels", npz(x_train=changed_at(noise(24), 1, noise(24)[0])), 0,
           ("WARN  duplicates", "different labels", "2 images, 1 different ones; 2 with different labels"), warned=("duplicates",),
           settings={"test-split": "official"}),
    Damage("bytes-as-floats", npz(x_train=noise(24).astype(np.float32), x_test=noise(9, 1).astype(np.float32)), 0,
           ("WARN  scale", "bytes", "pixels from 0 to 255"), warned=("scale",)),
    Damage("not-normalised", npz(x_train=PIXELS * 500, x_test=PIXELS[:9] / 2), 0, ("WARN  scale", "not normalised"), warned=("scale",),
           settings={"lr": 1e-9}),
    Damage("blank-images", npz(x_train=changed_at(noise(24), slice(0, 1), 9)), 0, ("WARN  constant", "1 images; x_train[0]"),
           warned=("constant",)),
    Damage("one-sample", npz(x_train=noise(1), y_train=np.zeros(1, int), x_test=None, y_test=None), 0,
           ("WARN  few-samples", "BatchNorm", "WARN  unscored"), warned=("unscored",)),
    Damage("one-in-a-hundred", npz(x_train=noise(102), y_train=changed_at(np.zeros(102, int), 3, 1), x_test=noise(3, 1),
                                   y_test=np.zeros(3, int)), 0,
           ("WARN  imbalance", "fewest: 1 'kq-naevus'", "WARN  missing-classes", "kq-wart"), settings={"test-split": "official"}),
    Damage("failing-loader", lambda folder: "tests.damaged_data:failing", 1, ("STOP  reading", "failed with DataError", CLASSES[0]),
           "the data loader failed with DataError"),
)
