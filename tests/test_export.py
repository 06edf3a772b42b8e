"""A personal model after its run: loaded or exported, it gives what it gave when it was scored."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from scipy.special import softmax
from torch import nn

import deploy.export as export_module
from client_app.data.client_data import ClientData
from client_app.data.sources import DataNode
from client_app.learners.fedper import FedPerLearner
from client_app.loop import LoopSettings, inputs
from client_app.personal import FromPixels, PersonalError, load_personal
from client_app.personal_facts import PersonalFacts
from deploy.cli import main
from deploy.export import export
from deploy.export_formats import FORMATS, Format
from models import build_model
from strategies.registry import METHODS
from tests.personal_cases import Kept, kept_run, rewrite
from tests.running import client_of, digits_of
from tests.thorough import THOROUGH

# every method with the smallest model it can have, and the two larger ones of split models
CASES = [(method,) for method in METHODS] + [("hdc-fl", "resnet18", 4), ("fedper", "mobilenetv2", 8)]
CPU = LoopSettings(device="cpu")
# One method for each kind of personal model is exported to the slow formats, the others only on request (some minutes). Both formats
# go through torch.export, so most are tried in one.
SLOW = {"onnx": {"hdc-fl", "hdc-fl-resnet18-4", "knn-per", "fedproto", "pep-fedpt"}, "torch-export": {"hdc-fl", "fedproto"}}


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case)))
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    method, *model = request.param
    return kept_run(tmp_path_factory.mktemp(method), method, **dict(zip(("model", "width"), model, strict=False)))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return kept_run(tmp_path_factory.mktemp("plain"), "fedper")


# --- the model that was kept


@pytest.mark.parametrize("index", [0, 1])
def test_a_kept_model_gives_exactly_the_logits_that_were_scored(kept: Kept, index: int) -> None:
    images, scored = kept.last_scored(index)
    personal = load_personal(kept.folder(index))
    labels = digits_of(index)[1][24:]
    assert personal.facts.served == float((scored.argmax(1) == labels).mean())
    assert str(personal.facts.served) == kept.ran.served[f"client-00{index}"]
    np.testing.assert_array_equal(personal.logits(images), scored)
    with torch.inference_mode():
        if not personal.normalises:
            np.testing.assert_array_equal(personal.module(torch.from_numpy(images.copy())).numpy(), scored)
            return
        np.testing.assert_array_equal(personal.module(inputs(images, CPU)).numpy(), scored)
        np.testing.assert_array_equal(FromPixels(personal.module)(torch.from_numpy(images.copy())).numpy(), scored)


def test_a_kept_model_says_what_it_is(kept: Kept) -> None:
    told = json.loads((kept.folder() / "personal.json").read_text(encoding="utf-8"))
    config = json.loads((kept.ran.folder / "run.json").read_text(encoding="utf-8"))
    assert {key: told[key] for key in ("method", "model", "width")} == {key: config[key] for key in ("method", "model", "width")}
    assert {key for key in config if key.startswith(f"{config['method']}.")} <= told["settings"].keys()
    assert all(config[key] == value for key, value in told["settings"].items())
    assert told["classes"] == list("0123456789") and told["input_shape"] == [1, 8, 8] and told["dtype"] == "uint8"
    assert (told["client"], told["run_id"], told["round"]) == ("client-000", "test", 1)
    assert load_personal(kept.folder()).facts == PersonalFacts.from_json(told)
    assert "array(" not in repr(load_personal(kept.folder()))  # a notebook would print every weight
    fewer = {"hdc-fl": {"restarts": 5}, "fedotp": {"iterations": 10}}.get(config["method"], {})  # tests' own, for speed
    assert load_personal(kept.folder()).facts.parsed.own == METHODS[config["method"]].config_class()(**fewer)


def test_probabilities_are_the_softmax_of_the_logits(plain: Kept) -> None:
    images, logits = plain.last_scored()
    np.testing.assert_allclose(load_personal(plain.folder()).predict(images), softmax(logits, 1), rtol=1e-5, atol=1e-7)
    assert load_personal(plain.folder()).predict(images[:0]).shape == (0, 10)


def odd_clients(node: DataNode, seed: int) -> ClientData:
    """Float images: a client with one sample, one with one class, one without a test set."""
    images, labels = digits_of(node.index)
    images = images.astype(np.float32) / 255
    match node.index:
        case 0:
            return client_of(images[:3], labels[:3], train=1)
        case 1:
            return client_of(images, np.full_like(labels, 3))
    return client_of(images[:24], labels[:24])


@pytest.mark.parametrize("method", METHODS)
def test_odd_clients_get_a_model_too(method: str, tmp_path: Path) -> None:
    kept = kept_run(tmp_path, method, clients=3, dataset="tests.test_export:odd_clients")
    for index, tests in enumerate((2, 8, 0)):
        personal = load_personal(kept.folder(index))
        images = digits_of(index)[0].astype(np.float32)[slice(1, 3) if index == 0 else slice(24, 24 + tests)] / 255
        assert personal.facts.dtype == "float32" and (personal.facts.served is None) == (tests == 0)
        if tests:
            np.testing.assert_array_equal(personal.logits(images), kept.scored[images.tobytes()][1])
    with pytest.raises(ValueError, match="dtype float32"):
        personal.predict(digits_of(0)[0])
    if method in ("hdc-fl", "knn-per") or THOROUGH:
        assert export(personal, "torch-export", tmp_path / "m.pt2") == 0


@pytest.mark.parametrize("name", ["personal.safetensors", "kept.safetensors"])
def test_a_copied_model_is_as_good(plain: Kept, name: str, tmp_path: Path) -> None:
    copy = tmp_path / name
    copy.write_bytes((plain.folder() / "personal.safetensors").read_bytes())
    images, scored = plain.last_scored()
    np.testing.assert_array_equal(load_personal(tmp_path if name.startswith("personal") else copy).logits(images), scored)


def test_a_method_may_rebuild_its_model_itself(plain: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bias(nn.Module):
        def __init__(self, bias: np.ndarray) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.from_numpy(bias.copy()))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.mean((1, 2, 3))[:, None] + self.bias

    def personal_module(kept: Any, facts: PersonalFacts) -> nn.Module:
        assert facts.method == "fedper"
        return Bias(kept["head"]["bias"])

    monkeypatch.setattr(FedPerLearner, "personal_module", staticmethod(personal_module), raising=False)
    personal = load_personal(plain.folder())
    black = np.zeros((1, 1, 8, 8), np.uint8)
    np.testing.assert_allclose(personal.logits(black)[0], personal.kept["head"]["bias"] - 2, rtol=1e-6)


@pytest.mark.parametrize("case", ["cut", "bit", "nothing said", "said badly", "no head", "other width", "absent", "unknown method"])
def test_what_cannot_be_loaded_is_told_without_a_path(plain: Kept, case: str, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "secret-site"
    folder.mkdir(parents=True)
    path = folder / "personal.safetensors"
    content = bytearray((plain.folder() / path.name).read_bytes())
    expected = "damaged"
    match case:
        case "cut":
            del content[len(content) // 2:]
        case "bit":
            content[-9] ^= 4
    if case != "absent":
        path.write_bytes(content)
    match case:
        case "said badly":
            rewrite(folder, dtype="complex64")
            expected = "dtype uint8 or float32"
        case "other width":
            rewrite(folder, width=8)
            expected = "cannot be rebuilt: encoder tensor"
        case "unknown method":
            rewrite(folder, method="fedperr")
            expected = "did you mean 'fedper'"
        case "nothing said":
            from client_app.local.store import LocalStore, read_export

            with LocalStore(tmp_path, "run", "secret-site") as store:
                store.export("personal", read_export(path)[0])
            expected = "older version"
        case "no head":
            from client_app.local.store import LocalStore, read_export

            slots, facts = read_export(path)
            with LocalStore(tmp_path, "run", "secret-site") as store:
                store.export("personal", {"encoder": slots["encoder"]}, facts)
            expected = "lacks its head"
        case "absent":
            expected = "there is no personal model here"
    with pytest.raises((PersonalError, ValueError), match=expected) as caught:
        load_personal(folder)
    assert "secret" not in str(caught.value) and str(tmp_path) not in str(caught.value)


# --- the exported model


@pytest.mark.parametrize("kind", FORMATS)
def test_an_exported_model_gives_the_logits_that_were_scored(kept: Kept, kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Read by its own format's reader: at most 1e-4 apart in ONNX (of the largest logit), not at all in the others, whatever the batch."""
    if kind in SLOW and request.node.callspec.id.removesuffix(f"-{kind}") not in SLOW[kind] and not THOROUGH:
        pytest.skip("another method's model stands for it; FEDHEARTH_THOROUGH=1 exports it too")
    out = tmp_path / "model"
    assert main(["export", "--run", str(kept.ran.folder), "--client", "client-001", "--format", kind, "--out", str(out)]) == 0
    images, scored = kept.last_scored(1)
    for count in (1, 3, 8):
        found, told = read(kind, out, images[:count])
        true = scored if count == 8 else load_personal(kept.folder(1)).logits(images[:count])
        assert found.shape == (count, 10) and found.dtype == np.float32
        assert np.abs(found - true).max() <= (1e-4 * max(1, np.abs(true).max()) if kind == "onnx" else 0)
        assert np.abs(softmax(found, 1) - softmax(true, 1)).max() <= (1e-4 if kind == "onnx" else 0)
    assert PersonalFacts.from_json(told) == load_personal(kept.folder(1)).facts
    assert "(batch, 1, 8, 8)" in told["input"] and "(batch, 10)" in told["output"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def read(kind: str, path: Path, images: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """Logits and facts of an exported file, without the code that wrote it where the format can do without."""
    match kind:
        case "onnx":
            session = onnxruntime.InferenceSession(path)
            assert [i.name for i in session.get_inputs()] == ["pixels"] and [o.name for o in session.get_outputs()] == ["logits"]
            facts = session.get_modelmeta().custom_metadata_map["fedhearth"]
            return np.asarray(session.run(["logits"], {"pixels": images})[0]), json.loads(facts)
        case "torch-export":
            extra = {"fedhearth.json": ""}
            with path.open("rb") as file:
                module = torch.export.load(file, extra_files=extra).module()
            return module(torch.from_numpy(images.copy())).numpy(), json.loads(extra["fedhearth.json"])
    with safe_open(path, framework="numpy") as file:
        return load_personal(path).logits(images), json.loads(file.metadata()["fedhearth"])


def test_bare_tensors_fit_the_model_by_name(plain: Kept, tmp_path: Path) -> None:
    """Without ``load_personal``: built by hand, filled by name, fed with images as the file says."""
    export(load_personal(plain.folder()), "safetensors", tmp_path / "m.safetensors")
    model = build_model("cnn", 10, (1, 8, 8), width=4).eval()
    found = model.load_state_dict({name: torch.from_numpy(t) for name, t in load_file(tmp_path / "m.safetensors").items()}, strict=False)
    assert not found.unexpected_keys and all(name.endswith("num_batches_tracked") for name in found.missing_keys)
    images, scored = plain.last_scored()
    with torch.inference_mode():
        np.testing.assert_array_equal(model((torch.from_numpy(images.copy()) / 255 - 0.5) / 0.25).numpy(), scored)


def test_images_that_were_float_stay_float(plain: Kept, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "client-000"
    folder.mkdir(parents=True)
    (folder / "personal.safetensors").write_bytes((plain.folder() / "personal.safetensors").read_bytes())
    personal = load_personal(rewrite(folder, dtype="float32"))
    assert export(personal, "onnx", tmp_path / "m.onnx") <= 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert [(i.name, i.type) for i in session.get_inputs()] == [("images", "tensor(float)")]
    images, scored = plain.last_scored()
    normalised = inputs(images, CPU).numpy()
    np.testing.assert_allclose(np.asarray(session.run(None, {"images": normalised})[0]), scored, atol=1e-4)


# --- what cannot be exported


def exporting(kept: Kept, kind: str, out: Path) -> int:
    return main(["export", "--run", str(kept.ran.folder), "--client", "client-000", "--format", kind, "--out", str(out)])


def test_a_missing_extra_is_named(plain: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(export_module, "find_spec", lambda name: None if name == "onnxscript" else object())
    assert exporting(plain, "onnx", tmp_path / "m") == 2
    assert "needs onnxscript" in capsys.readouterr().err
    assert exporting(plain, "safetensors", tmp_path / "m") == 0


def test_a_file_that_says_something_else_is_not_put_in_place(plain: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    true = FORMATS["safetensors"]
    out = tmp_path / "m"
    out.write_bytes(b"before")
    monkeypatch.setitem(FORMATS, "safetensors", Format(true.write, lambda path, images: true.logits(path, images) + 0.5, 1e-4))
    assert exporting(plain, "safetensors", out) == 1
    assert "differs from the model by 0.5 in logits of up to" in capsys.readouterr().err

    def fails(*given: Any) -> bytes:
        raise RuntimeError("no such operator")

    monkeypatch.setitem(FORMATS, "safetensors", Format(fails, true.logits, 1e-4))
    assert exporting(plain, "safetensors", out) == 1
    assert "cannot be written as safetensors (RuntimeError: no such operator)" in capsys.readouterr().err
    assert out.read_bytes() == b"before" and [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize(("theirs", "apart"), [
    ([3.0, -np.inf, -1e30], 0.0), ([3.5, -np.inf, -1e30], 0.5), ([3.0, -1e9, -1e30], np.inf), ([3.0, -np.inf, np.nan], np.nan)])
def test_classes_that_are_never_the_answer_are_no_measure_of_the_others(theirs: list[float], apart: float) -> None:
    def always(row: list[float]) -> Any:
        return lambda images: np.tile(np.float32(row), (len(images), 1))

    model: Any = SimpleNamespace(input_shape=(1, 2, 2), facts=SimpleNamespace(dtype="uint8"), logits=always([3.0, -np.inf, -1e30]))
    np.testing.assert_equal(export_module._compared(model, always(theirs)), (apart, 3.0))


def test_a_model_in_bfloat16_is_no_onnx(tmp_path: Path) -> None:
    model: Any = SimpleNamespace(data_module=nn.Linear(2, 2).bfloat16())
    with pytest.raises(export_module.ExportError, match="in bfloat16 .precision = bf16 of its run.*; take safetensors or torch-export"):
        export(model, "onnx", tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(("kind", "out"), [("onnx", "nowhere/m"), ("onnx", "."), ("tflite", "m")])
def test_a_wrong_place_or_format(plain: Kept, kind: str, out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if kind == "tflite":
        with pytest.raises(SystemExit, match="2"):
            exporting(plain, kind, tmp_path / out)
        assert "invalid choice: 'tflite'" in capsys.readouterr().err
    else:
        assert exporting(plain, kind, tmp_path / out) == 2
        assert "--out must name a file" in capsys.readouterr().err
