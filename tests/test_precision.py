"""How float32 tensors travel: hand-worked bits, parity with torch's bfloat16, and the whole way through the wire."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from strategies.precision import from_travel, to_travel
from strategies.types import layout_of
from strategies.wire import Slot, Wire, WireViolation, bytes_of, pack, unpack


def test_bfloat16_rounds_to_nearest_even_as_torch_does() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=2000), [0.0, -0.0, 1e-40, 3.0e38, 1 + 2**-8, 1 + 3 * 2**-8]]).astype(np.float32)
    mine = from_travel(to_travel(x, "bfloat16"), "bfloat16")
    np.testing.assert_array_equal(mine, torch.from_numpy(x).bfloat16().float().numpy())


def test_one_and_a_half_ulp_goes_to_the_even_neighbour() -> None:
    # bfloat16 keeps 7 bits: 1 + 2^-8 lies half-way and goes down to 1, 1 + 3 * 2^-8 goes up to 1 + 2^-6
    halves = np.array([1 + 2**-8, 1 + 3 * 2**-8], dtype=np.float32)
    np.testing.assert_array_equal(from_travel(to_travel(halves, "bfloat16"), "bfloat16"), np.float32([1.0, 1 + 2**-6]))


@pytest.mark.parametrize("travel", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_inf_do_not_hide_in_another_precision(travel: str, bad: float) -> None:
    wire = Wire(down=(), up=(Slot("encoder", "D", "", like="encoder"),), local=(), travel=travel)
    tensors = {"w": np.array([0.0, bad], dtype=np.float32)}
    with pytest.raises(WireViolation) as refused:
        unpack(wire, "up", pack({"encoder": tensors}, travel=travel), {"encoder": layout_of(tensors)})
    assert refused.value.kind == "non-finite"


@pytest.mark.parametrize(("travel", "size", "error"), [("float32", 4, 0.0), ("float16", 2, 2**-11), ("bfloat16", 2, 2**-8)])
def test_a_slot_travels_in_half_the_bytes_and_comes_back_as_float32(travel: str, size: int, error: float) -> None:
    x = np.linspace(0.5, 1.0, 1000, dtype=np.float32).reshape(10, 100)
    sketch = np.arange(3, dtype=np.float16)
    wire = Wire(down=(), up=(Slot("encoder", "", "", like="encoder"), Slot("sketch", "Q", "", layout=(("q", (3,), "float16"),))),
                local=(), travel=travel)
    content = pack({"encoder": {"w": x}, "sketch": {"q": sketch}}, travel=travel)
    assert bytes_of(content) == {"encoder": 128 + 1000 * size, "sketch": 128 + 6}
    back = unpack(wire, "up", content, {"encoder": {"w": ((10, 100), "float32")}})
    assert back["encoder"]["w"].dtype == np.float32 and np.abs(back["encoder"]["w"] - x).max() <= error
    np.testing.assert_array_equal(back["sketch"]["q"], sketch)


def test_a_reply_in_another_precision_than_the_run_is_refused() -> None:
    wire = Wire(down=(), up=(Slot("encoder", "", "", like="encoder"),), local=())
    content = pack({"encoder": {"w": np.zeros(4, np.float32)}}, travel="bfloat16")
    with pytest.raises(WireViolation) as refused:
        unpack(wire, "up", content, {"encoder": {"w": ((4,), "float32")}})
    assert refused.value.kind == "dtype"
