"""``fedhearth predict``: let a client's personal model classify images.

One row an image: its file, the likeliest class and its probability, then the probability of every class. A file that cannot be
used gets a row with the reason, and the others are done. Exit codes: 0 all done, 1 some file could not be used or there
was no image, 2 no model.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TextIO

import numpy as np

from deploy.client_models import add_arguments, open_model
from deploy.launch import output_file
from server_app.durable import replacing
from strategies.config import ConfigError

if TYPE_CHECKING:
    from client_app.personal import Personal
    from deploy.prediction_input import Item

BATCH = 64
DIGITS = 6


@dataclass(frozen=True, eq=False)
class Answer:
    """One row: ``probabilities`` (C,), or an ``error``."""

    name: str
    probabilities: np.ndarray | None = None
    error: str = ""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command ``predict``."""
    parser = commands.add_parser("predict", help="let a client's personal model classify images")
    add_arguments(parser)
    parser.add_argument("files", nargs="+", metavar="FILES", help="image files, folders of them, or npz:FILE")
    parser.add_argument("--format", choices=tuple(WRITERS), default="csv", help="default: csv")
    parser.add_argument("--out", default="", metavar="FILE", help="replaced if it is there; default: the terminal")
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="cpu, cuda or cuda:N; default: cpu")
    parser.add_argument("--resize", action="store_true", help="scale images of another size too, though the run scaled none")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Classify, write the rows; returns the exit code."""
    from deploy.prediction_input import items

    personal = open_model(options, options.device)
    done = failed = 0

    def counted(found: Iterable[Answer]) -> Iterator[Answer]:
        nonlocal done, failed
        for answer in found:
            done, failed = done + 1, failed + bool(answer.error)
            yield answer

    with _written(options.out) as file:
        WRITERS[options.format](counted(answers(personal, items(options.files), options.resize)), personal.classes, file)
    if failed:
        print(f"fedhearth: {failed} of {done} could not be used; their rows say why", file=sys.stderr)
    if not done:
        print("fedhearth: there was no image to classify", file=sys.stderr)
    return 1 if failed or not done else 0


def answers(personal: Personal, found: Iterable[Item], resize: bool = False) -> Iterator[Answer]:
    """An answer for each item, in their order; as many in memory at a time as go through the model together."""
    from concurrent.futures import ThreadPoolExecutor

    from deploy.prediction_input import converted

    left = iter(found)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        while batch := list(islice(left, BATCH)):
            ready = list(pool.map(lambda item: converted(item, personal.facts, resize), batch))
            images = [image for image in ready if not isinstance(image, str)]
            rows = iter(personal.predict(np.stack(images)) if images else ())
            for item, image in zip(batch, ready, strict=True):
                yield Answer(item.name, error=image) if isinstance(image, str) else Answer(item.name, next(rows))


def write_csv(found: Iterable[Answer], classes: tuple[str, ...], file: TextIO) -> None:
    """Columns: file, class, probability, ``p(NAME)`` for every class, error."""
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["file", "class", "probability", *(f"p({name})" for name in classes), "error"])
    for answer in found:
        p = answer.probabilities
        if p is None:
            rows.writerow([answer.name, "", "", *("" for _ in classes), answer.error])
        else:
            best = int(p.argmax())
            rows.writerow([answer.name, classes[best], *(f"{value:.{DIGITS}f}" for value in (p[best], *p)), ""])


def write_json(found: Iterable[Answer], classes: tuple[str, ...], file: TextIO) -> None:
    """A list of objects: file, class, probability, probabilities by class; or file, error."""
    file.write("[")
    for number, answer in enumerate(found):
        file.write(",\n" if number else "\n")
        p = answer.probabilities
        row = {"file": answer.name, "error": answer.error} if p is None else {
            "file": answer.name, "class": classes[int(p.argmax())], "probability": round(float(p.max()), DIGITS),
            "probabilities": {name: round(float(value), DIGITS) for name, value in zip(classes, p, strict=True)}}
        file.write(json.dumps(row, ensure_ascii=False))
    file.write("\n]\n")


WRITERS: dict[str, Callable[[Iterable[Answer], tuple[str, ...], TextIO], None]] = {"csv": write_csv, "json": write_json}


@contextmanager
def _written(out: str) -> Iterator[TextIO]:
    """The terminal, or a file that is put in place once it is whole."""
    if not out:
        yield sys.stdout
        return
    path = output_file(out)
    try:
        # a file's name need not be text
        with replacing(path, durable=False) as part, part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            yield file
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None
