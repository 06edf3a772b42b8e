"""``hub:NAME``: data sets of Hugging Face ``datasets`` that lie on this disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from client_app.data import DataError, open_data
from client_app.data.reading import Reading
from client_app.data.source import Source
from client_app.data.sources import load_source, origin_of
from strategies.config import RunConfig
from tests.data_cases import FakeNode
from tests.image_files import write_folder

FEATURES = datasets.Features({"picture": datasets.Image(), "fine": datasets.ClassLabel(names=["x", "y", "z"]),
                              "client_id": datasets.Value("int64"), "domain": datasets.Value("string")})


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def data_set(values: range, **columns: Any) -> datasets.Dataset:
    content = {"picture": [Image.new("L", (4, 4), value) for value in values], "fine": [value % 2 for value in values],
               "client_id": [10 - value for value in values], "domain": ["ab"[value % 2] for value in values]}
    return datasets.Dataset.from_dict({**content, **columns}, features=FEATURES)


def open_hub(where: object, **reading: Any) -> Source:
    return load_source(origin_of(f"hub:{where}", Reading(**reading)))


def pixels(source: Source, *indices: int) -> list[int]:
    return source.take(np.array(indices or range(len(source)))).images[:, 0, 0, 0].tolist()


def test_what_save_to_disk_wrote_is_read_with_its_names_and_columns(tmp_path: Path) -> None:
    data_set(range(6)).save_to_disk(str(tmp_path / "saved"))
    source = open_hub(tmp_path / "saved")
    assert source.classes == ("x", "y", "z") and source.labels.tolist() == [0, 1, 0, 1, 0, 1] and source.train_count == 6
    assert source.image_shape == (1, 4, 4) and pixels(source) == [0, 1, 2, 3, 4, 5] and pixels(source, 4, 1) == [4, 1]
    assert source.meta["client"].tolist() == ["10", "9", "8", "7", "6", "5"] and source.meta["domain"].tolist() == list("ababab")


def test_splits_are_the_official_sets_and_unknown_ones_are_left_out(tmp_path: Path) -> None:
    parts = {"test": data_set(range(4, 6)), "extra": data_set(range(9, 12)), "train": data_set(range(3)),
             "validation": data_set(range(3, 4))}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    source = open_hub(tmp_path / "saved")
    assert pixels(source) == [0, 1, 2, 3, 4, 5] and source.train_count == 4 and pixels(source, 5, 0, 3) == [5, 0, 3]
    data = open_data(RunConfig(test_split="official", image_size=2), FakeNode("clinic", data=f"hub:{tmp_path / 'saved'}"))
    assert sorted(data.train.images[:, 0, 0, 0].tolist()) == [0, 1, 2, 3] and data.input_shape == (1, 2, 2)
    datasets.DatasetDict({"test": data_set(range(2)), "extra": data_set(range(2))}).save_to_disk(str(tmp_path / "other"))
    with pytest.raises(DataError, match="expected a split named train"):
        open_hub(tmp_path / "other")


def test_a_selection_reads_its_own_rows(tmp_path: Path) -> None:
    data_set(range(6)).select([5, 0, 3]).save_to_disk(str(tmp_path / "saved"))
    source = open_hub(tmp_path / "saved")
    assert pixels(source, 2, 0) == [3, 5] and source.labels.tolist() == [1, 0, 1]


def test_folders_of_parquet_and_of_images(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for part, values in (("train", range(3)), ("test", range(3, 5))):
        data_set(values).to_parquet(str(tmp_path / "files" / f"{part}.parquet"))
    source = open_hub(tmp_path / "files")
    assert (pixels(source), source.train_count, source.classes) == ([0, 1, 2, 3, 4], 3, ("x", "y", "z"))
    write_folder(tmp_path / "images", train=[("b/1", 1), ("a/2", 2)], test=[("b/3", 3)])
    images = open_hub(tmp_path / "images")
    assert (images.classes, images.train_count, sorted(pixels(images))) == (("a", "b"), 2, [1, 2, 3])
    assert {images.classes[label]: value for label, value in zip(images.labels, pixels(images), strict=True)} == {"a": 2, "b": 3}


def test_columns_are_chosen_in_the_uri_and_bytes_need_no_image_feature(tmp_path: Path) -> None:
    from tests.image_files import encode, grey

    datasets.Dataset.from_dict({"raw": [encode(grey(7)), b"broken"], "finding": ["q", "p"]}).save_to_disk(str(tmp_path / "saved"))
    source = open_hub(f"{tmp_path / 'saved'}?image=raw&label=finding&classes=p,q,r", bad_images="skip")
    assert source.classes == ("p", "q", "r") and source.labels.tolist() == [1] and pixels(source) == [7] and source.skipped == 1
    assert source.unreadable[0].startswith("row 1 (from 0) of the data set (")
    with pytest.raises(DataError, match="no image column"):
        open_hub(tmp_path / "saved")


def test_the_digest_follows_the_content_and_not_the_process(tmp_path: Path) -> None:
    where = tmp_path / "saved"
    data_set(range(3)).save_to_disk(str(where))
    digests = []
    for _ in range(2):
        load_source.cache_clear()
        digests.append(open_hub(where).images.store.digest())  # type: ignore[attr-defined]
    data_set(range(1, 4)).save_to_disk(str(where))
    load_source.cache_clear()
    assert digests[0] == digests[1] != open_hub(where).images.store.digest()  # type: ignore[attr-defined]


def test_what_cannot_be_opened_is_refused_without_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "state.json").write_text("{}")
    with pytest.raises(DataError, match="cannot be opened .* or a name on a hub") as caught:
        open_hub(tmp_path / "secret")
    assert "secret" not in str(caught.value) and caught.value.path == str(tmp_path / "secret")

    asked: list[tuple[str, str | None]] = []
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config=None: asked.append((name, config)) or data_set(range(2)))
    assert pixels(open_hub("someone/something#small?domain=")) == [0, 1] and "domain" not in load_source(
        origin_of("hub:someone/something#small?domain=")).meta
    assert asked == [("someone/something", "small")]
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'fedhearth\[hub\]'"):
        open_hub("another")
