"""The data checks one by one, with numbers worked out by hand; what of them a hello carries; and the command around them."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict
from hypothesis import given
from hypothesis import strategies as st

from client_app.data import ClientData, DataError, Split
from client_app.data.checks import CHECKS, Share, check
from client_app.data.class_names import class_digest, differences, twins
from client_app.data.content import content_of, joined
from client_app.data.findings import Finding
from client_app.data.sources import DataNode
from client_app.data.start_check import MOST_IMAGES, check_at_start, share_of
from deploy.checks.file_rows import wrong_rows
from deploy.cli import main
from server_app.html import page
from server_app.roster import Hello, data_warnings
from server_app.summary import findings
from strategies.data_warnings import MEANING, heard, told
from strategies.wire import WireViolation, unpack_hello
from tests.damaged_data import CLASSES, images, noise, npz
from tests.flower_cases import hello
from tests.test_roster import Town, gathered


def grey(*values: int, side: int = 2) -> np.ndarray:
    """One image a value: that value, but for a last pixel of 0."""
    made = np.array(values, np.uint8)[:, None, None, None] * np.ones((1, 1, side, side), np.uint8)
    made[:, :, -1, -1] = 0
    return made


def data(train: Any = None, labels: Sequence[int] = (0, 1, 2), test: Any = None,
         classes: tuple[str, ...] = ("ant", "bee", "cat")) -> ClientData:
    """Three different training images, a fourth to test with, and what is given in their place."""
    train = grey(*range(1, 1 + len(labels))) if train is None else train
    test = grey(200).astype(train.dtype) if test is None else test
    n, m = len(train), len(test)
    return ClientData(Split(train, np.array(labels), np.arange(n)), Split(test, np.zeros(m, np.int64), np.arange(n, n + m)), classes)


def found(kind: str, made: ClientData, batch: int = 2) -> Finding:
    return next(finding for finding in check(share_of(made, batch)) if finding.kind == kind)


def test_sound_data_pass_every_check() -> None:
    outcomes = check(share_of(data(), 2))
    assert {finding.verdict for finding in outcomes} == {"PASS"} and len(outcomes) == len(CHECKS) == 10


@pytest.mark.parametrize(("counts", "verdict"), [
    ((100, 1), "WARN"), ((19, 1), "PASS"), ((95, 5), "PASS"), ((96, 4), "WARN"),  # one class above 95 %
    ((900, 899, 9), "PASS"), ((900, 899, 8), "WARN"),  # more than 100 to 1
    ((3,), "WARN"), ((0, 5, 5), "PASS"),  # a class without a sample is another check's
])
def test_extreme_imbalance(counts: tuple[int, ...], verdict: str) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    made = data(np.zeros((len(labels), 1, 1, 1), np.uint8), labels.tolist(), grey(200, side=1))
    outcome = found("imbalance", made)
    assert outcome.verdict == verdict
    if counts == (100, 1):
        assert outcome.here == "most: 100 of 101 are 'ant'; fewest: 1 'bee'"


def test_one_class_alone_is_no_imbalance() -> None:
    assert found("imbalance", data(labels=(0, 0, 0), classes=("ant",))).verdict == "PASS"


@pytest.mark.parametrize(("labels", "lacking"), [((0, 1, 2), ()), ((2, 2), ("ant", "bee")), ((0,), ("bee", "cat"))])
def test_classes_without_a_training_sample(labels: tuple[int, ...], lacking: tuple[str, ...]) -> None:
    outcome = found("missing-classes", data(labels=labels))
    assert outcome.named == lacking and outcome.verdict == ("WARN" if lacking else "PASS")


@pytest.mark.parametrize(("n", "batch", "verdict", "word"), [
    (1, 8, "WARN", "BatchNorm"), (3, 1, "WARN", "BatchNorm"), (3, 4, "WARN", "fewer training samples"), (3, 3, "PASS", ""),
    (4, 3, "PASS", ""),
])
def test_too_few_samples(n: int, batch: int, verdict: str, word: str) -> None:
    outcome = found("few-samples", data(labels=[0] * n), batch)
    assert outcome.verdict == verdict and word in outcome.text and outcome.here.startswith(f"{n} samples")


def test_an_empty_test_set() -> None:
    assert found("unscored", data(test=grey()[:0])).verdict == "WARN"
    assert found("test-in-train", data(test=grey()[:0])).verdict == "PASS"


@pytest.mark.parametrize(("test", "verdict", "share"), [
    ((9, 8), "PASS", ""), ((2, 8), "WARN", "1 of 2 test images (50.0 %)"), ((3, 1), "STOP", "2 of 2 test images (100.0 %)"),
])
def test_test_images_in_training(test: tuple[int, ...], verdict: str, share: str) -> None:
    outcome = found("test-in-train", data(test=grey(*test)))
    assert (outcome.verdict, outcome.here) == (verdict, share)
    if verdict == "STOP":  # ids: training 0 1 2, test 3 4
        assert outcome.named == ("test sample 3 = training sample 2", "test sample 4 = training sample 0")


def test_a_tenfold_test_image_is_found_at_the_first_training_image_like_it() -> None:
    assert found("test-in-train", data(grey(5, 7, 5), test=grey(5, 6))).named == ("test sample 3 = training sample 0",)


def test_duplicates_in_training() -> None:
    same = found("duplicates", data(grey(1, 1, 2, 3, 3, 3), (0, 0, 1, 2, 2, 2)))
    assert same.here == "5 images, 2 different ones" and same.named == tuple(f"training sample {i}" for i in (0, 1, 3, 4, 5))
    unlike = found("duplicates", data(grey(1, 1, 2, 3, 3, 3), (0, 1, 1, 2, 2, 2)))
    assert "different labels" in unlike.text and unlike.here == "5 images, 2 different ones; 2 with different labels"
    assert unlike.named == ("training sample 0", "training sample 1")


def test_images_of_one_colour() -> None:
    flat = grey(1, 2, 3)
    flat[1] = 77
    outcome = found("constant", data(flat, test=np.full((1, 1, 2, 2), 5, np.uint8)))
    assert outcome.here == "2 images" and outcome.named == ("training sample 1", "test sample 3")
    channels = np.zeros((3, 3, 2, 2), np.uint8)
    channels[0, 0], channels[1, 0, 0, 0], channels[2, 2, 1, 1] = 9, 9, 9
    assert found("constant", data(channels, test=channels[1:2] + 1)).named == ("training sample 0",)  # plain red is of one colour too


@pytest.mark.parametrize(("low", "high", "verdict", "word"), [
    (-10.0, 10.0, "PASS", ""), (-10.0, 10.5, "WARN", "not normalised"), (0.0, 255.0, "WARN", "bytes"),
    (0.0, 254.5, "WARN", "not normalised"),
    (-1.0, 255.0, "WARN", "not normalised"), (0.0, 256.0, "WARN", "not normalised"),
])
def test_the_scale_of_floats(low: float, high: float, verdict: str, word: str) -> None:
    train = np.array([low, high, 1, 2] * 3, np.float32).reshape(3, 1, 2, 2)
    outcome = found("scale", data(train, test=np.ones((1, 1, 2, 2), np.float32)))
    assert outcome.verdict == verdict and word in outcome.text and outcome.here == f"pixels from {low:g} to {high:g}"


def test_bytes_have_no_scale_to_be_wrong() -> None:
    assert found("scale", data(grey(1, 255, 3))).verdict == "PASS"


@pytest.mark.parametrize(("coloured", "verdict"), [(0, "PASS"), (1, "WARN"), (10, "WARN"), (19, "WARN"), (20, "PASS")])
def test_grey_among_coloured(coloured: int, verdict: str) -> None:
    """Of 20 images: from 1 to 19 coloured ones are a mixture (5 % and more)."""
    pixels = np.repeat(noise(20, 0, (1, 4, 4)), 3, axis=1)
    pixels[:coloured, 0] = 255 - pixels[:coloured, 0]
    outcome = found("grey-mix", data(pixels[:16], [0, 1] * 8, pixels[16:]))
    assert outcome.verdict == verdict
    if coloured == 10:
        assert outcome.here == "10 of 20 (50.0 %) are grey" and len(outcome.named) == 10


@pytest.mark.parametrize(("classes", "expected"), [
    (("cat", "Cat "), [("cat", "Cat ")]), (("a b", "ab", "c"), [("a b", "ab")]), (("x", "x"), [("x", "x")]),
    (("stra\u00dfe", "STRASSE"), [("stra\u00dfe", "STRASSE")]),
    (("A", "a", "b"), []), (("cat", "cats"), []), (("10", "1"), []),
])
def test_names_that_pass_for_one(classes: tuple[str, ...], expected: list[tuple[str, ...]]) -> None:
    assert twins(classes) == expected


@pytest.mark.parametrize(("here", "there", "expected"), [
    (("a", "b"), ("a", "b"), []), (("a", "b", "d"), ("a", "c"), ["only here: 'b', 'd'", "only there: 'c'"]),
    (("a", "c", "b"), ("a", "b", "c"), ["the same names in another order: label 1 is 'c' here and 'b' there"]),
    (("a", "a"), ("a",), ["2 names here, 1 there, some of them repeated"]),
])
def test_differences_of_names(here: tuple[str, ...], there: tuple[str, ...], expected: list[str]) -> None:
    assert differences(here, there) == expected
    assert (class_digest(here) == class_digest(there)) == (not expected)


@given(st.integers(0, 2**32), st.integers(1, 30), st.sampled_from([1, 3]), st.booleans())
def test_the_content_of_images_against_a_loop(seed: int, n: int, channels: int, floats: bool) -> None:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 2, (n, channels, 2, 1)).astype(np.float32 if floats else np.uint8)
    pixels = pixels / 2 if floats and seed % 2 else pixels
    seen = joined([content_of(pixels[:7]), content_of(pixels[7:])])
    for i, image in enumerate(pixels):
        assert seen.constant[i] == all(len(set(channel.ravel().tolist())) == 1 for channel in image)
        assert seen.grey[i] == (channels == 3 and all((image[0] == channel).all() for channel in image))
        assert seen.whole[i] == all(float(x).is_integer() for x in image.ravel())
        assert (seen.lowest[i], seen.highest[i]) == (image.min(), image.max())
        for k, other in enumerate(pixels):
            assert (seen.digests[i] == seen.digests[k]) == np.array_equal(image, other)


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = content_of(noise(10, 0, (3, 4, 4)))
    monkeypatch.setattr("client_app.data.content.CHUNK_BYTES", 100)
    assert (content_of(noise(10, 0, (3, 4, 4))).digests == whole.digests).all()


# At a client's start


def test_the_start_tells_kinds_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    made = data(grey(1, 1, 2), (0, 0, 0), test=grey(1, 9))
    with caplog.at_level(logging.INFO):
        assert check_at_start(made, 25, simulated=False, noted=("skipped",)) == "test-in-train,duplicates,skipped"
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    said = caplog.text
    assert "bee, cat" in said and "imbalance" not in said and "most: 3 of 3 are 'ant']" in said and "3 samples, batch 25" in said
    caplog.clear()
    with caplog.at_level(logging.INFO):
        check_at_start(made, 25, simulated=True)
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_what_stops_at_the_start_says_no_name(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataError) as stopped:
        check_at_start(data(classes=("ant", "cat", "CAT")), 2, simulated=False)
    assert str(stopped.value) == ("two class names differ in upper and lower case or in blanks only, or not at all: give one class one "
                                  "name. `fedhearth data check` on this machine says which")
    assert "'cat' = 'CAT'" in caplog.text


def test_the_start_looks_at_the_first_thousands_only() -> None:
    n = MOST_IMAGES + 10
    train = np.arange(n, dtype="<u4").view(np.uint8).reshape(n, 1, 2, 2)  # all different
    train = np.concatenate([train, train[-1:]])
    made = data(train, [0] * (n + 1), train[:0])
    assert found("duplicates", made).here == "2 images, 1 different ones"
    share: Share = share_of(made, 2, MOST_IMAGES)
    assert (len(share.train.content), len(share.train.labels)) == (MOST_IMAGES, n + 1)
    assert next(f for f in check(share) if f.kind == "duplicates").verdict == "PASS"


def test_no_text_that_may_travel_has_a_number() -> None:
    """Any finding about any of these: its travelling half is the same words whatever the data are."""
    worst = data(grey(1, 1, 7), (0, 1, 1), test=grey(1))
    texts = [f.travelling() for f in check(share_of(worst, 25)) if f.verdict != "PASS"]
    assert texts and not [text for text in texts if any(letter.isdigit() for letter in text)]
    assert not [text for text in texts if any(name in text.split() for name in ("ant", "bee", "cat"))]


# What a hello carries


def test_a_hello_names_known_kinds_and_nothing_else() -> None:
    assert unpack_hello(hello("a", warnings="duplicates,unscored"))["warnings"] == "duplicates,unscored"
    for text in ("duplicates=12", "imbalance", "few-samples", "missing-classes", "duplicates,", "cat", " ", "duplicates, scale"):
        with pytest.raises(WireViolation, match="the 'warnings' of a hello is not of its form"):
            unpack_hello(hello("a", warnings=text))


def test_what_is_told_is_heard() -> None:
    kinds = tuple(finding.kind for finding in check(share_of(data(), 2)))
    assert told(kinds) == "test-in-train,duplicates,constant,scale,grey-mix,unscored"
    assert heard(told(("scale", "imbalance", "duplicates"))) == ("duplicates", "scale") and heard("") == ()
    assert set(MEANING) - set(kinds) == {"skipped", "numbered"}


def test_the_server_counts_and_says_which_clients(caplog: pytest.LogCaptureFixture) -> None:
    says = {1: "duplicates", 2: "", 3: "duplicates,scale"}
    town = Town([1, 2, 3], lambda node: hello(f"site-{node}", warnings=says[node]))
    with caplog.at_level(logging.WARNING):
        made = gathered(town, 3)
    assert made.hellos["site-3"] == Hello("site-3", 10, "ab12", (1, 8, 8), "cd34", ("duplicates", "scale"))
    assert data_warnings(made.hellos) == {"duplicates": ["site-1", "site-3"], "scale": ["site-3"]}
    assert "training images that occur more than once (site-1, site-3); float pixels" in caplog.text


def test_the_report_says_what_the_clients_warned_of() -> None:
    final = {"served": {"a": 0.5, "b<": 0.25}, "n_test": {"a": 4, "b<": 4}, "data_warnings": {"duplicates": ["a", "b<"]}}
    config = {"method": "fedper", "dataset": "d", "partition": "iid", "seed": 0}
    made = findings(config, "inprocess", [{"round": 1, "seconds": 1.0}], final, None)
    assert made.summary["data_warnings"] == {"duplicates": ["a", "b<"]}
    assert "Data check: training images that occur more than once at 2 of 2 clients (a, b&lt;)." in page(made)
    assert findings({}, "inprocess", [], {}, None).summary["data_warnings"] == {}


# The command


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code, and the findings by kind."""
    code = main(["data", "check", *words, "--json"])
    said = json.loads(capsys.readouterr().out)
    kinds = {finding["kind"]: finding for finding in said["findings"]}
    assert len(kinds) == len(said["findings"]) and said["uri"] == words[0]
    assert said["verdict"] == max((f["verdict"] for f in kinds.values()), key=("PASS", "WARN", "STOP").index)
    return code, kinds


def shared(node: DataNode, seed: int) -> ClientData:
    """Clients 0 and 1 have one image in common; client 2 has a twin of its own."""
    own = {0: (1, 2, 3), 1: (3, 4, 5), 2: (7, 7, 8)}[node.index]
    return data(grey(*own), test=grey(100 + node.index))


def test_digits_are_sound_alone_and_divided(capsys: pytest.CaptureFixture[str]) -> None:
    code, kinds = checked(capsys, "digits")
    assert code == 0 and {f["verdict"] for f in kinds.values()} == {"PASS"}
    assert kinds["few-samples"]["here"] == "1348 samples, batch 25" and kinds["agreement"]["here"].startswith("10 classes, digest b4784743")
    code, kinds = checked(capsys, "digits", "--clients", "5", "-c", "partition=label-subset", "--batch", "2000")
    assert code == 0 and kinds["shared"]["verdict"] == "PASS"
    assert kinds["missing-classes"]["here"].startswith("5 of 5 clients: client-000, client-001")
    assert kinds["few-samples"]["verdict"] == "WARN"


def test_clients_that_hold_the_same_images(capsys: pytest.CaptureFixture[str]) -> None:
    code, kinds = checked(capsys, "tests.test_data_checks:shared", "--clients", "3", "-c", "model=module:unknown")
    assert kinds["shared"]["here"] == "1 images; first: client-000 and client-001"
    assert kinds["duplicates"]["here"] == "1 of 3 clients: client-002: 2 images, 1 different ones; 2 with different labels"
    assert code == 1 and kinds["model"]["verdict"] == "STOP"


@pytest.mark.parametrize(("words", "said"), [
    (["npz:nowhere.npz"], "nowhere.npz does not exist"), (["folder:"], "expected a place after `folder:`"), (["digitz"], "names no data"),
    (["digits:x"], "names no data"), (["no_module_kq:load"], "cannot be imported (ModuleNotFoundError"),
    (["digits", "--batch", "-1"], "1 or more"), (["digits", "-c", "modle=cnn"], "did you mean 'model'?"),
    (["digits", "--expect", "npz:nowhere.npz"], "nowhere.npz does not exist"),
])
def test_input_that_cannot_be_used_ends_with_2(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", "check", *words]) == 2
    assert said in capsys.readouterr().err


def test_data_that_cannot_be_divided_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, kinds = checked(capsys, npz()(tmp_path), "--clients", "200", "-c", "partition=iid")
    assert code == 1 and kinds["division"]["verdict"] == "STOP"
    code, kinds = checked(capsys, "digits", "-c", "test-split=official")
    assert code == 1 and "no official test set" in kinds["division"]["text"]


def test_all_unreadable_images_are_listed_and_the_rest_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = images(60)(tmp_path)
    broken = sorted(tmp_path.rglob("*.png"))[:25]
    for path in broken:
        path.write_bytes(path.read_bytes()[:-30])
    code, kinds = checked(capsys, uri)
    assert code == 1 and [name.partition(" (")[0] for name in kinds["unreadable"]["named"]] == [str(path) for path in broken]
    assert kinds["few-samples"]["verdict"] == "PASS" and kinds["reading"]["here"].startswith("35 samples")
    assert main(["data", "check", uri]) == 1
    assert all(str(path) in capsys.readouterr().out for path in broken[:1])


def test_classes_against_those_agreed_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = npz()(tmp_path)
    assert checked(capsys, uri, "--classes", ",".join(CLASSES))[1]["agreement"]["verdict"] == "PASS"
    code, kinds = checked(capsys, uri, "--classes", "kq-melanoma,kq-naevus")
    assert code == 1 and kinds["agreement"]["here"] == "only here: 'kq-wart'"
    code, kinds = checked(capsys, uri, "--expect", "digits")
    assert code == 1 and "only there: '0', '1'" in kinds["agreement"]["here"]


def test_wrong_rows_of_a_file(tmp_path: Path) -> None:
    x = np.zeros((4, 2, 2), np.float32)
    x[1, 0, 0], x[3, 1, 1] = np.nan, np.inf
    np.savez(tmp_path / "a.npz", x_train=x, y_train=np.array([0.0, 1.5, np.nan, -1]), y_test=np.array([3, 2, -7, 0]),
             class_names=np.array(["a", "b", "c"]))
    assert wrong_rows(f"npz:{tmp_path / 'a.npz'}") == [
        "y_train: no whole numbers in 2 places: y_train[1] = 1.5, y_train[2] = nan", "y_train: negative in 1 places: y_train[3] = -1.0",
        "x_train: NaN or infinity in 2 images: x_train[1], x_train[3]", "y_test: negative in 1 places: y_test[2] = -7",
        "y_test: beyond the last of 3 classes, 2 in 1 places: y_test[0] = 3"]
    assert wrong_rows("digits") == [] and wrong_rows(f"npz:{tmp_path}") == []


def test_many_images_get_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("deploy.checks.data_opened.SHOWN_FROM", 100)
    assert main(["data", "check", "digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "PASS"  # the bar is on stderr


def test_a_simulation_of_contradicting_names_ends_before_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = npz(class_names=np.array(["cat", "Cat ", "dog"]))(tmp_path)
    words = ["-c", f"dataset={uri}", "-c", "clients=2", "-c", "rounds=1", "-c", "width=4", "--workers", "1", "--out", str(tmp_path / "run")]
    assert main(["run", *words]) == 2
    assert "a client cannot take part: client-000: two class names differ" in capsys.readouterr().err
    assert not (tmp_path / "run" / "rounds.jsonl").exists()


def test_the_doctor_looks_at_a_sites_data_too(tmp_path: Path) -> None:
    from deploy.checks.site_data import looked_over

    lines = [str(line) for line in looked_over(data(grey(1, 1, 2), (0, 1, 2), classes=("ant", "cat", "CAT")), 25)]
    assert lines[0].startswith("FAIL  class-names  two class names differ") and "'cat' = 'CAT'" in lines[0]
    assert [line.split()[:2] for line in lines[1:]] == [["warn", "few-samples"], ["warn", "duplicates"], ["pass", "data"]]
    assert "7 of 10 checks found nothing" in lines[-1]


def test_a_message_without_warnings_is_of_another_version() -> None:
    said = hello("a")
    del said["hello"]["warnings"]  # type: ignore[attr-defined]
    with pytest.raises(WireViolation, match="a hello carries exactly site, classes, .*, warnings, weights-digest"):
        unpack_hello(RecordDict({"hello": said["hello"]}))
