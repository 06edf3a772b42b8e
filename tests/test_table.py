"""``table:FILE``: which column is which, labels, official sets, further columns, CSV and Parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from client_app.data import DataError
from client_app.data.columns import find_columns, labels_of, official_order
from client_app.data.reading import Reading
from client_app.data.source import Source
from client_app.data.sources import load_source, origin_of
from tests.image_files import encode, grey, write


def open_table(uri: str, **reading: Any) -> Source:
    return load_source(origin_of(f"table:{uri}", Reading(**reading)))


def pixels(source: Source, *indices: int) -> list[int]:
    return source.take(np.array(indices or range(len(source)))).images[:, 0, 0, 0].tolist()


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    for value in range(6):
        write(tmp_path / "scans" / f"{value}.png", encode(grey(value)))
    return tmp_path


def csv_of(folder: Path, text: str, name: str = "t.csv", **more: Any) -> Path:
    path = folder / name
    path.write_text(text, **{"encoding": "utf-8", **more})
    return path


def test_a_csv_of_paths_with_every_column(scans: Path) -> None:
    table = csv_of(scans, "File,Label,Split,hospital,Domain,client\n"
                          "scans/0.png,malign,test,x,mri,3\nscans/1.png,benign,train,x,ct,1\n"
                          f"{scans / 'scans' / '2.png'},malign,Training,x,mri,1\nscans/3.png,benign,dev,x,,2\n")
    source = open_table(str(table))
    assert source.classes == ("benign", "malign") and source.labels.tolist() == [0, 1, 0, 1]
    # validation counts as training where there is a test set
    assert source.train_count == 3 and pixels(source) == [1, 2, 3, 0] and source.image_shape == (1, 4, 4)
    assert {name: column.tolist() for name, column in source.meta.items()} == {
        "domain": ["ct", "mri", "", "mri"], "client": ["1", "1", "2", "3"]}
    assert pixels(source, 3, 1) == [0, 2]


def test_columns_are_chosen_in_the_uri(scans: Path) -> None:
    table = csv_of(scans, "path,label,other,finding,split\nx,0,scans/0.png,b,unheard\nx,0,scans/1.png,a,of\n")
    source = open_table(f"{table}?image=other&label=finding&split=&client=path&classes=a, b,c")
    assert source.classes == ("a", "b", "c") and source.labels.tolist() == [1, 0] and pixels(source) == [0, 1]
    assert source.meta["client"].tolist() == ["x", "x"] and source.train_count == 2
    with pytest.raises(DataError, match="unknown word in the split column: expected train, val or test"):
        open_table(f"{table}?image=other&label=finding")


@pytest.mark.parametrize(("separator", "encoding"), [(";", "utf-8"), ("\t", "utf-8"), (",", "utf-8-sig")])
def test_separators_and_a_byte_order_mark(scans: Path, separator: str, encoding: str) -> None:
    text = "image,label\n\"scans/0.png\",ä\nscans/1.png,b\n".replace(",", separator)
    source = open_table(str(csv_of(scans, text, encoding=encoding)))
    assert source.classes == ("b", "ä") and pixels(source) == [0, 1]


def parquet_of(file: Path, groups: int = 2, metadata: dict[str, str] | None = None, **columns: Any) -> Path:
    table = arrow.table(columns)
    parquet.write_table(table.replace_schema_metadata(metadata), file, row_group_size=groups)
    return file


def test_a_parquet_of_bytes_is_read_by_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet_of(tmp_path / "t.parquet", image=[encode(grey(v)) for v in range(7)], label=[0, 2, 1, 0, 2, 1, 0],
                      domain=["a", "b", "a", "b", "a", "b", "a"], user=[5, 5, 5, 6, 6, 6, 6])
    source = open_table(str(path))
    assert source.classes == ("0", "1", "2") and source.labels.tolist() == [0, 2, 1, 0, 2, 1, 0]
    assert source.meta["client"].tolist() == ["5", "5", "5", "6", "6", "6", "6"]
    read: list[int] = []
    real = parquet.ParquetFile.read_row_group
    monkeypatch.setattr(parquet.ParquetFile, "read_row_group",
                        lambda self, i, **more: read.append(i) or real(self, i, **more))
    assert pixels(source, 6, 1, 0) == [6, 1, 0]
    assert read == [0, 3]


def test_a_parquet_of_structs_paths_and_declared_names(scans: Path) -> None:
    names = json.dumps({"info": {"features": {"label": {"names": ["no", "yes", "unsure"], "_type": "ClassLabel"}}}})
    both = parquet_of(scans / "a.parquet", metadata={"huggingface": names}, label=[1, 0],
                      image=[{"bytes": encode(grey(9)), "path": None}, {"bytes": None, "path": "scans/1.png"}])
    source = open_table(str(both))
    assert source.classes == ("no", "yes", "unsure") and source.labels.tolist() == [1, 0] and pixels(source) == [9, 1]
    paths = open_table(str(parquet_of(scans / "b.parquet", path=["scans/2.png", "scans/3.png"], target=["b", "a"])))
    assert paths.classes == ("a", "b") and pixels(paths) == [2, 3]


def test_unreadable_rows_are_skipped_with_their_labels_and_columns(scans: Path) -> None:
    (scans / "scans" / "1.png").write_bytes(b"")
    table = csv_of(scans, "path,y,set,domain\nscans/5.png,1,test,e\nscans/0.png,0,train,a\nscans/1.png,1,train,b\n"
                          "nowhere.png,0,train,c\nscans/2.png,1,train,d\n")
    source = open_table(str(table), bad_images="skip")
    assert (pixels(source), source.labels.tolist(), source.meta["domain"].tolist()) == ([0, 2, 5], [0, 1, 1], ["a", "d", "e"])
    assert (source.train_count, source.skipped) == (2, 2)
    with pytest.raises(DataError, match="^2 of the images cannot be read") as caught:
        open_table(str(table))
    assert "nowhere" not in str(caught.value) and "nowhere.png (FileNotFoundError" in caught.value.path
    blob = parquet_of(scans / "a.parquet", image=[b"broken", None, encode(grey(3))], label=["x", "x", "y"])
    found = open_table(str(blob), bad_images="skip")
    assert found.unreadable[0].startswith(f"row 0 (from 0) of {blob} (") and pixels(found) == [3]
    # a class without a readable image stays a class
    assert found.classes == ("x", "y") and found.labels.tolist() == [1]


@pytest.mark.parametrize(("text", "query", "expected"), [
    ("image,finding\na,b\n", "", "no label column: expected one of label, labels, class, target, y, category, or its name.*\\?label=NAME"),
    ("scan,label\na,b\n", "", "no image column"),
    ("image,label\na,b\n", "?label=secret", "no column of the name that `label=` gives"),
    ("image,label\na,b\n", "?lable=secret", "takes the options image, label, split, client, domain, classes after"),
    ("image,label\nsecret,\nsecret,b\n", "", "^1 of the samples have no label"),
    ("image,label\nsecret,b\nsecret,c,d\nsecret\n", "", "^2 rows of the table have another number of columns"),
    ("image,label\nsecret,b\nsecret,c\n", "?classes=b,d", "^1 of the samples have a label that is not among"),
    ("image,label\nscans/1.png,-1\nscans/2.png,0\n", "", "label out of range"),
    ("image,label\nscans/1.png,3\nscans/2.png,0\n", "?classes=a,b", "label out of range"),
    ("image,label\nscans/1.png,100000\nscans/2.png,0\n", "", "C at most 100000"),
    ("image,label\n", "", "has no row"),
    ("", "", "no image column"),
    ("image,label\n\"secret,b\n", "", "damaged or no CSV"),
    ("image,label\nsecret\0,b\n", "", "cannot be read|damaged"),
])
def test_a_malformed_table_is_refused_without_its_content(scans: Path, text: str, query: str, expected: str) -> None:
    with pytest.raises(DataError, match=expected) as caught:
        open_table(f"{csv_of(scans, text)}{query}")
    assert "secret" not in str(caught.value) and str(scans) not in str(caught.value) and caught.value.path


def test_damaged_missing_and_foreign_files_are_refused(tmp_path: Path) -> None:
    whole = parquet_of(tmp_path / "a.parquet", image=[encode(grey(1))], label=[0]).read_bytes()
    for name, content, expected in (("b.parquet", whole[:-8], "no Parquet file"), ("c.parquet", b"", "no Parquet file"),
                                    ("d.csv", b"image,label\n\xff\xfe,1\n", "no CSV in UTF-8")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=expected):
            open_table(str(tmp_path / name))
    for place in (tmp_path / "nowhere.csv", tmp_path):
        with pytest.raises(DataError, match="the table is missing") as caught:
            open_table(str(place))
        assert str(tmp_path) not in str(caught.value) and caught.value.path == str(place)
    for labels in ([0.5], [True], [[1, 2]]):
        with pytest.raises(DataError, match="whole numbers or names"):
            open_table(str(parquet_of(tmp_path / "e.parquet", image=[encode(grey(1))], label=labels)))
            load_source.cache_clear()


def test_a_damage_amid_the_images_is_found_when_they_are_read(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (5, 32, 32), np.uint8)
    path = parquet_of(tmp_path / "secret.parquet", groups=1, image=[encode(image) for image in noise], label=list("ababa"))
    source = open_table(str(path))
    group = parquet.ParquetFile(path).metadata.row_group(3).column(0)
    content = bytearray(path.read_bytes())
    start = group.dictionary_page_offset or group.data_page_offset
    content[start:start + group.total_compressed_size] = b"\xff" * group.total_compressed_size
    path.write_bytes(content)
    assert source.take(np.array([0, 1, 2, 4])).labels.tolist() == [0, 1, 0, 0]
    for indices in ([3], [0, 3]):
        with pytest.raises(DataError, match="the file that holds the images is damaged") as caught:
            source.take(np.array(indices))
        assert "secret" not in str(caught.value)
    path.unlink()
    with pytest.raises(DataError, match="or gone since it was opened"):
        source.take(np.array([0]))


def test_without_pyarrow_a_parquet_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet_of(tmp_path / "a.parquet", image=[encode(grey(1))], label=[0])
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'fedhearth\[table\]'"):
        open_table(str(path))


def test_the_first_alias_wins_and_case_does_not_matter() -> None:
    assert find_columns(["PATH", "Image", "y", "Label", "Domain"], {}) == {"image": "Image", "label": "Label", "domain": "Domain"}
    assert find_columns(["path", "y", "domain"], {"domain": ""}) == {"image": "path", "label": "y"}


@pytest.mark.parametrize(("values", "classes", "labels", "names"), [
    ([2, 0, 2], (), [2, 0, 2], ("0", "1", "2")),
    (["10", "9"], (), [10, 9], tuple(map(str, range(11)))),
    (["10", "9", "x"], (), [0, 1, 2], ("10", "9", "x")),
    (["01", "02"], (), [0, 1], ("01", "02")),
    (["7", "3"], ("3", "7"), [1, 0], ("3", "7")),
    ([1, 0], ("a", "b", "c"), [1, 0], ("a", "b", "c")),
    (["b ", "a"], (), [1, 0], ("a", "b")),
    ([np.int64(1), np.int64(0)], (), [1, 0], ("0", "1")),
])
def test_labels_are_numbers_or_names(values: list[Any], classes: tuple[str, ...], labels: list[int], names: tuple[str, ...]) -> None:
    got, got_names = labels_of(values, classes)
    assert (got.tolist(), got_names, got.dtype) == (labels, names, np.int64)


def test_validation_tests_where_nothing_else_does() -> None:
    order, count = official_order(["val", "train", "valid", "train"])
    assert (order.tolist(), count) == ([1, 3, 0, 2], 2)
    order, count = official_order(["VAL", "train", "Test"])
    assert (order.tolist(), count) == ([0, 1, 2], 2)
