"""The GPU path, on a CPU: where images lie, what is compiled and how often, which GPU a worker takes, what happens when memory runs out.

What needs a GPU is skipped where there is none: same numbers as a CPU, no wait for the device within an epoch, a real lack of memory.
"""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from client_app import compiled, device, device_data, loop
from client_app.device_data import Streamed, batches, fetched_ahead, in_order
from client_app.loop import LoopSettings, Sgd, fit, score
from client_app.prompt_loop import RatedSgd, fit_prompts
from deploy import inprocess
from models import SplitModel, build_model
from models.backbones import load_backbone
from models.flat_copy import fetch, send
from models.prompted_vit import PromptConfig, PromptedViT
from strategies.config import ConfigError
from tests import running

SETTINGS = LoopSettings(epochs=2, batch=4, lr=0.05, device="cpu")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def model_of(seed: int = 0, width: int = 2) -> SplitModel:
    return build_model("cnn", 3, (1, 8, 8), width=width, seed=seed)


def some_data(n: int, dtype: type = np.uint8) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.integers(0, 256, (n, 1, 8, 8)).astype(dtype), rng.integers(0, 3, n)


def bits(model: Any) -> bytes:
    return b"".join(t.tobytes() for part in model.parts for t in model.tensors(part).values())


def streamed(images: np.ndarray, settings: LoopSettings, ready: Any, size: int) -> Streamed:
    return Streamed(images, settings.torch_device, ready)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images_that_come_a_batch_at_a_time_train_the_same_bits(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = some_data(11, dtype)
    resident, fetched = model_of(), model_of()
    fit(resident, images, labels, SETTINGS, seed=7)
    monkeypatch.setattr(device_data, "_placed", streamed)
    images.flags.writeable = False  # as those of a memory-mapped data set
    fit(fetched, images, labels, SETTINGS, seed=7)
    assert bits(fetched) == bits(resident) != bits(model_of())


def test_images_stay_on_the_gpu_up_to_their_share_of_its_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    images, _ = some_data(4)  # 256 bytes, 1024 as float32
    settings: Any = SimpleNamespace(torch_device=torch.device("cuda"), resident_share=0.25)
    monkeypatch.setattr(device_data, "array_on_device", lambda array, settings: torch.from_numpy(array))
    for free, place, kind in ((4096, device_data.for_training, torch.Tensor), (4095, device_data.for_training, Streamed),
                              (1024, device_data.raw_for_training, torch.Tensor), (1023, device_data.raw_for_training, Streamed)):
        monkeypatch.setattr(device_data, "free_memory", lambda device, free=free: free)
        assert isinstance(place(images, settings), kind)
    with pytest.raises(ValueError, match="uint8 or float32"):
        device_data.for_training(images.astype(np.int64), settings)


def test_parts_arrive_in_order_and_only_a_few_ahead() -> None:
    made: list[int] = []

    def parts() -> Iterator[np.ndarray]:
        for number in range(6):
            made.append(number)
            yield np.full(2, number)

    for number, tensor in enumerate(fetched_ahead(parts(), torch.device("cpu"))):
        assert tensor.tolist() == [number, number] and len(made) <= number + device_data.AHEAD + 1
    assert made == list(range(6)) and not list(fetched_ahead([], torch.device("cpu")))

    def broken() -> Iterator[np.ndarray]:
        yield np.zeros(1)
        raise OSError("a data set that went away")

    with pytest.raises(OSError, match="went away"):
        list(fetched_ahead(broken(), torch.device("cpu")))
    for wrong in (np.zeros((2, 8, 8), np.uint8), np.zeros((2, 1, 8, 8))):
        with pytest.raises(ValueError, match="uint8 or float32"):
            list(in_order([wrong], SETTINGS))


def test_rows_are_those_of_the_order() -> None:
    x, order = torch.arange(10, 60, 10), torch.tensor([4, 0, 3, 1, 2])
    assert [part.tolist() for part in batches(x, order, [2, 3])] == [[50, 10], [40, 20, 30]]
    held = Streamed(x.numpy(), torch.device("cpu"), lambda part: part + 1)
    assert [part.tolist() for part in held.batches(order, [2, 3])] == [[51, 11], [41, 21, 31]]


def prompted() -> PromptedViT:
    vit = load_backbone("vit-tiny-random", image_size=16)
    vit.blocks = vit.blocks[:2]
    return PromptedViT(vit, 3, PromptConfig(shared_tokens=2, class_layers=(2,)))


def test_no_step_asks_the_device_for_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on torch's meta device have none, so asking raises."""
    monkeypatch.setattr("models.prompted_vit.exact", lambda tensor: nullcontext())  # no autocast there
    y = torch.zeros(4, dtype=torch.int64, device="meta")
    for made, images in ((lambda m: Sgd(m, SETTINGS), torch.zeros(4, 1, 8, 8, device="meta")),
                         (lambda m: RatedSgd(m, SETTINGS, {"shared": 1.0, "class": 1.0, "head": 0.1}),
                          torch.zeros(4, 3, 16, 16, device="meta"))):
        model: Any = (model_of() if images.shape[1] == 1 else prompted()).to("meta")
        step = made(model)
        (batch,), (labels,) = batches(images, torch.arange(4), [4]), batches(y, torch.arange(4), [4])
        assert step(batch, labels).device.type == "meta"
        with pytest.raises((RuntimeError, NotImplementedError)):
            float(step(batch, labels))


class Counting:
    """A compiler that only counts how often it is asked; ``broken`` from the second call on, the first being the trial."""

    def __init__(self, broken: bool = False) -> None:
        self.graphs, self.broken = -1, broken

    def __call__(self, graph: Any, examples: Any) -> Any:
        self.graphs += 1
        if self.broken and self.graphs:
            raise RuntimeError("no such header")
        return graph.forward


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    compiled._compiled.cache_clear()


def test_a_model_is_compiled_once_for_all_clients_and_rounds(monkeypatch: pytest.MonkeyPatch, fresh_compiler: None) -> None:
    counting = Counting()
    monkeypatch.setattr(compiled, "BACKEND", counting)
    plain, fast, start = model_of(), model_of(), {part: model_of().tensors(part) for part in model_of().parts}
    for rnd in range(2):
        for n in (8, 11, 9, 10):  # steps of 4 and 4; of 3; of 5; of 2
            for model, settings in ((plain, SETTINGS), (fast, dataclasses.replace(SETTINGS, compile=True))):
                for part, tensors in start.items():
                    model.load(part, tensors)
                fit(model, *some_data(n), settings, seed=rnd)
            assert bits(plain) == bits(fast)
            assert score(plain, *some_data(n), SETTINGS) == score(fast, *some_data(n), dataclasses.replace(SETTINGS, compile=True))
    assert counting.graphs == 2  # whole batches, and every other size
    fit(model_of(seed=1), *some_data(8), dataclasses.replace(SETTINGS, compile=True), seed=0)
    assert counting.graphs == 2  # another model of the same architecture


def test_a_compiled_gradient_and_compiled_prompts_agree(monkeypatch: pytest.MonkeyPatch, fresh_compiler: None) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    images, labels = some_data(8)
    plain, fast = model_of(), model_of()
    wanted = fit(plain, images, labels, SETTINGS, seed=3)
    got = fit(fast, images, labels, dataclasses.replace(SETTINGS, compile=True), seed=3)
    assert got.loss == pytest.approx(wanted.loss, rel=1e-5)
    for name, tensor in plain.tensors("encoder").items():
        np.testing.assert_allclose(fast.tensors("encoder")[name], tensor, rtol=1e-4, atol=1e-6)
    monkeypatch.setattr(compiled, "BACKEND", "eager")  # tracing a ViT takes seconds as it is
    models, losses = [prompted(), prompted()], []
    for model, on in zip(models, (False, True), strict=True):
        settings = dataclasses.replace(SETTINGS, compile=on, epochs=1)
        stats = fit_prompts(model, images, labels, settings, {"shared": 1.0, "class": 1.0, "head": 0.1}, 3)
        losses.append(stats.loss)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    np.testing.assert_allclose(models[1].tensors("prompts")["shared"], models[0].tensors("prompts")["shared"], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("in_trial", [True, False])
def test_without_a_compiler_steps_run_as_they_are(in_trial: bool, monkeypatch: pytest.MonkeyPatch, fresh_compiler: None,
                                                  caplog: pytest.LogCaptureFixture) -> None:
    def missing(graph: Any, examples: Any) -> Any:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(compiled, "BACKEND", missing if in_trial else Counting(broken=True))
    plain, fast = model_of(), model_of()
    fit(plain, *some_data(8), SETTINGS, seed=0)
    with caplog.at_level(logging.WARNING):
        for model in (fast, model_of()):
            fit(model, *some_data(8), dataclasses.replace(SETTINGS, compile=True), seed=0)
    assert bits(plain) == bits(fast)
    (said,) = [r.getMessage() for r in caplog.records if r.name == "client_app.compiled"]  # once, not for every client
    assert said.startswith("compile = true has no effect in this process") and "C++ compiler" in said


def test_an_error_of_the_model_is_no_error_of_the_compiler(monkeypatch: pytest.MonkeyPatch, fresh_compiler: None) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    made = compiled.loss_function(dataclasses.replace(SETTINGS, compile=True))
    monkeypatch.setattr(made, "_fast", lambda *given: (_ for _ in ()).throw(torch.cuda.OutOfMemoryError("full")))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        made(model_of(), torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64))
    assert not made.failed  # type: ignore[attr-defined]


def test_a_client_out_of_memory_is_dropped_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, descend = [], loop.descend

    def short(*given: Any) -> float:
        calls.append(1)
        if len(calls) == 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return descend(*given)

    monkeypatch.setattr(loop, "descend", short)
    said: list[str] = []

    def hook(message: Any, reply: Any) -> Any:
        answer = reply()
        said.extend([answer.error.reason] if answer.has_error() else [])
        return answer

    ran = running.run(tmp_path, "fedper", hook)
    assert ran.summary["dropped"] == {"OutOfDeviceMemory": 1} and [len(r["accepted"]) for r in ran.records] == [3, 4]
    (reason,) = said
    assert reason.startswith("fedhearth:OutOfDeviceMemory: client-") and "lower score-batch, batch, resident-share" in reason
    assert "MiB" not in reason and reason.endswith("(methods with prompts: checkpointing = true)")


def test_workers_share_out_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    for gpus in (0, 1, 4):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        for worker in range(6):
            device.take_gpu(worker, "cuda" if worker % 2 else "auto")
            device.take_gpu(worker, "cuda:1")
            device.take_gpu(worker, "cpu")
    assert taken == [0, 1, 2, 3, 0, 1]


def test_a_worker_takes_its_gpu_before_its_first_message(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[int, str]] = []
    monkeypatch.setattr(device, "take_gpu", lambda worker, name: taken.append((worker, name)))
    monkeypatch.setattr(inprocess.signal, "signal", lambda *given: None)

    class Closed:
        def recv(self) -> Any:
            raise EOFError

    inprocess.work(Closed(), {"device": "cuda"}, 4, inprocess.OWN_APP, 3, "")  # type: ignore[arg-type]
    inprocess.work(Closed(), {}, 4, "tests.flower_cases:light_app", 2, "")  # type: ignore[arg-type]
    assert taken == [(3, "cuda")]


@pytest.mark.parametrize(("tf32", "kernels", "expected"), [
    ("convolutions", "heuristic", (True, False, False, False, False)), ("off", "deterministic", (False, False, False, True, True)),
    ("all", "benchmark", (True, True, True, False, False))])
def test_what_torch_is_told_of_a_gpu(tf32: str, kernels: str, expected: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul

    def told() -> tuple[bool, ...]:
        return (cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark, cudnn.deterministic, torch.are_deterministic_algorithms_enabled())

    before = told()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # whoever set it keeps it
    device.switches(dataclasses.replace(SETTINGS, tf32="all", gpu_kernels="benchmark"))
    assert told() == before  # a CPU run changes nothing
    asked: Any = SimpleNamespace(torch_device=torch.device("cuda"), tf32=tf32, gpu_kernels=kernels)
    try:
        device.switches(asked)
        assert told() == expected
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark, cudnn.deterministic = before[:4]
        torch.use_deterministic_algorithms(before[4])
    for wrong in ({"tf32": "on"}, {"gpu_kernels": "fast"}, {"resident_share": 1.5}):
        with pytest.raises(ConfigError, match=next(iter(wrong)).replace("_", "-")):
            LoopSettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("channels_last", [False, True])
def test_one_copy_carries_what_many_would(channels_last: bool) -> None:
    ours, target = model_of(seed=1, width=8), model_of(seed=2, width=8)
    if channels_last:
        for model in (ours, target):
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    wanted = ours.tensors("encoder")
    got = fetch(ours._floating("encoder"))
    assert list(got) == list(wanted) and all(np.array_equal(got[k], wanted[k]) and got[k].shape == wanted[k].shape for k in wanted)
    assert fetch({}) == {}
    for array in got.values():
        array.flags.writeable = False
    send(got, target._floating("encoder"))
    assert all(np.array_equal(tensor, wanted[name]) for name, tensor in target.tensors("encoder").items())
    half = torch.zeros(2, 2, dtype=torch.bfloat16)
    send({"w": np.array([[1.0, -2.5], [0.0, 3.0]])}, {"w": half})
    assert half.tolist() == [[1.0, -2.5], [0.0, 3.0]]


@on_gpu
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_gpu_trains_what_a_cpu_trains(share: float) -> None:
    images, labels = some_data(43)
    settings = dataclasses.replace(SETTINGS, device="cuda", tf32="off", gpu_kernels="deterministic", resident_share=share)
    here, there = model_of(width=8), model_of(width=8)
    wanted, got = fit(here, images, labels, SETTINGS, seed=1), fit(there, images, labels, settings, seed=1)
    assert got.loss == pytest.approx(wanted.loss, rel=1e-3)
    for name, tensor in here.tensors("encoder").items():
        np.testing.assert_allclose(there.tensors("encoder")[name], tensor, rtol=1e-2, atol=1e-3)


@on_gpu
def test_an_epoch_waits_for_the_gpu_once() -> None:
    settings = dataclasses.replace(SETTINGS, device="cuda", epochs=1, batch=2)
    model, x = model_of(width=8), torch.zeros(20, 1, 8, 8, device="cuda")
    loop.place(model, settings)
    waits = []
    for n in (4, 20):
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                loop.descend(Sgd(model, settings), x[:n], torch.zeros(n, dtype=torch.int64, device="cuda"), [2] * (n // 2), 1, 0)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        waits.append(len(caught))
    assert waits[0] == waits[1]  # whatever the number of steps
