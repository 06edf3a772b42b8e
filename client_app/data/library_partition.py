"""Any partitioner of flwr-datasets, by its name: ``flwr-datasets:DirichletPartitioner?alpha=0.5&partition_by=label``.

What follows "?" are the partitioner's own arguments, ``key=value`` joined by "&", or one JSON object. It sees a table of
``label``, ``index`` and the data's further columns (``domain``, ``client``), never an image. Our own choices: the table is mixed
first, so that partitioners without a seed depend on the run's too; ``num_partitions``, ``seed`` and ``partition_by`` (the
label) are filled in where it takes them; and a result that is no partition is refused.

Needs the extra ``fedhearth[hub]``, which is imported here alone and on use.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from client_app.data.partition import Meta, PartitionError, check_clients


def library_partition(labels: np.ndarray, meta: Meta, clients: int, rng: np.random.Generator, *, call: str) -> list[np.ndarray]:
    """The parts that the partitioner in ``call`` makes.

    Raises
    ------
    PartitionError
        If flwr-datasets is not installed or has no such partitioner, its arguments are wrong, it fails, makes another
        number of parts, leaves one empty or puts a sample in two.
    """
    check_clients(labels, clients)
    name, _, text = call.partition("?")
    kind = _partitioner(name)
    arguments = _completed(kind, arguments_of(text), clients, int(rng.integers(2**31)))
    order = rng.permutation(len(labels))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they say of classes left out, the manifest counts
            parts = _loaded(kind(**arguments), _table(labels, meta, order), clients)
    except PartitionError:
        raise
    except Exception as error:
        # its own text may quote the data, so that it is chained for this machine only
        raise PartitionError(f"{name} of flwr-datasets failed with {type(error).__name__}: its arguments do not fit these data") from error
    _check_parts(parts, name)
    return [rng.permutation(part) for part in parts]


def arguments_of(text: str) -> dict[str, Any]:
    """``a=1&b=x`` or a JSON object as arguments; a value is JSON where it can be, else text.

    Raises
    ------
    PartitionError
        If it is neither.
    """
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            raise PartitionError("the partitioner's arguments start with '{' but are no JSON object") from None
    pairs = [pair.partition("=") for pair in text.split("&") if pair]
    if not all(key and equals for key, equals, _ in pairs):
        raise PartitionError("expected the partitioner's arguments as key=value joined by '&', or as a JSON object")
    return {key: _value(value) for key, _, value in pairs}


def _completed(kind: type, given: Mapping[str, Any], clients: int, seed: int) -> dict[str, Any]:
    """``given`` with what every run can say itself, where ``kind`` takes it."""
    takes = inspect.signature(kind).parameters
    filled = {"num_partitions": clients, "seed": seed, "partition_by": "label"}
    arguments = {key: value for key, value in filled.items() if key in takes} | dict(given)
    unknown = sorted(arguments.keys() - takes.keys())
    missing = [key for key, told in takes.items() if told.default is told.empty and key not in arguments]
    if unknown or missing:
        raise PartitionError(f"{kind.__name__} takes {', '.join(takes)}; " + (
            f"got {', '.join(unknown)}" if unknown else f"{', '.join(missing)} must be given: ...?{missing[0]}=VALUE"))
    return arguments


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _partitioner(name: str) -> type:
    try:
        from flwr_datasets import partitioner
    except ImportError as error:
        raise PartitionError("partitions of flwr-datasets need the extra `hub`: pip install 'fedhearth[hub]'") from error
    kind = getattr(partitioner, name, None)
    if not (inspect.isclass(kind) and issubclass(kind, partitioner.Partitioner) and not inspect.isabstract(kind)):
        known = sorted(key for key in partitioner.__all__ if key.endswith("Partitioner") and key != "Partitioner")
        raise PartitionError(f"flwr-datasets has no partitioner {name!r}; it has {', '.join(known)}")
    return kind


def _table(labels: np.ndarray, meta: Mapping[str, np.ndarray], order: np.ndarray) -> Any:
    from datasets import Dataset

    columns = {"label": labels[order], "index": order, **{key: values[order].astype(str) for key, values in meta.items()}}
    return Dataset.from_dict({key: values.tolist() for key, values in columns.items()})


def _loaded(partitioner: Any, table: Any, clients: int) -> list[np.ndarray]:
    from datasets.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

    shown = is_progress_bar_enabled()
    disable_progress_bar()  # one bar a client would fill the log
    try:
        partitioner.dataset = table
        if partitioner.num_partitions != clients:
            raise PartitionError(f"{type(partitioner).__name__} makes {partitioner.num_partitions} parts of these data, but "
                                 f"clients={clients}; set clients={partitioner.num_partitions}")
        return [np.asarray(partitioner.load_partition(client)["index"], np.int64) for client in range(clients)]
    finally:
        if shown:
            enable_progress_bar()


def _check_parts(parts: list[np.ndarray], name: str) -> None:
    if not all(map(len, parts)):
        raise PartitionError(f"{name} leaves {sum(not len(part) for part in parts)} of {len(parts)} clients without a sample; use "
                             "fewer clients or other arguments")
    if len(np.unique(np.concatenate(parts))) != sum(map(len, parts)):
        raise PartitionError(f"{name} gives some samples to several clients; use another partitioner")
