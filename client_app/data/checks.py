"""One client's data looked over before training: a list of checks, each of which gives one ``Finding``.

The same checks run at a site's start (``client_app.data.start_check``) and in ``fedhearth data check``. All thresholds are our
own choice; none of them is a matter of right and wrong, so what they find is a warning. What is wrong beyond doubt (a label out
of range, a NaN) never gets here: ``Split``, ``ClientData`` and the readers refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from client_app.data.class_names import twins
from client_app.data.content import Content
from client_app.data.findings import Finding

LARGEST_RATIO = 100  # largest class / smallest one
LARGEST_SHARE = 0.95  # of one class
LARGEST_RANGE = 20.0  # highest - lowest float pixel; normalised images span about 4
FEWEST_MIXED = 0.05  # share of grey, and of coloured, images from which on they are a mixture; CIFAR-10 has 1 % grey ones


@dataclass(frozen=True, eq=False)
class Part:
    """A client's training samples, or its test samples.

    Attributes
    ----------
    labels : (n,). content : (m,) with m <= n: the first m images were looked at.
    name : position -> the sample in words, for this machine only.
    """

    labels: np.ndarray
    content: Content
    name: Callable[[int], str]

    def named(self, which: np.ndarray) -> tuple[str, ...]:
        """The samples for which the (m,) booleans ``which`` hold."""
        return in_order(map(self.name, np.flatnonzero(which).tolist()))


@dataclass(frozen=True, eq=False)
class Share:
    """What the checks see of a client; ``batch`` is the run's, ``floats`` whether its images are float32."""

    classes: tuple[str, ...]
    train: Part
    test: Part
    batch: int
    floats: bool


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """``names`` with x[9] before x[10]; a client's samples are in the order of a random draw."""
    return tuple(sorted(names, key=lambda name: (len(name), name)))


def check(share: Share) -> list[Finding]:
    """All checks, in the order in which one would mend things."""
    return [look(share) for look in CHECKS]


def class_names(share: Share) -> Finding:
    """Every class has a name, and no two nearly the same: a typing error would make two classes of one, and halve both."""
    if empty := [label for label, name in enumerate(share.classes) if not name.strip()]:
        return Finding("STOP", "class-names", "a class has an empty name", "give every class a name", f"label {empty[0]}")
    if alike := twins(share.classes):
        return Finding("STOP", "class-names", "two class names differ in upper and lower case or in blanks only, or not at all",
                       "give one class one name", "; ".join(" = ".join(map(repr, group)) for group in alike))
    return Finding("PASS", "class-names", "all class names are different", here=f"{len(share.classes)} classes")


def missing_classes(share: Share) -> Finding:
    """Every class has a training sample here."""
    held = np.bincount(share.train.labels, minlength=len(share.classes))
    lacking = tuple(share.classes[label] for label in np.flatnonzero(held == 0))
    if lacking:
        return Finding("WARN", "missing-classes", "some classes have no training sample here", "fine if this client has none; else look "
                       "whether names or labels were lost", f"{len(lacking)} of {len(share.classes)}", lacking)
    return Finding("PASS", "missing-classes", "every class has a training sample")


def balance(share: Share) -> Finding:
    """No class is nearly everything, or nearly nothing."""
    held = np.bincount(share.train.labels, minlength=len(share.classes))
    most, least = int(held.max()), int(held[held > 0].min())
    largest, smallest = share.classes[int(held.argmax())], share.classes[int(np.where(held > 0, held, most + 1).argmin())]
    figures = f"most: {most} of {held.sum()} are {largest!r}" + (f"; fewest: {least} {smallest!r}" if smallest != largest else "")
    if len(share.classes) > 1 and (most > LARGEST_SHARE * held.sum() or most > LARGEST_RATIO * least):
        return Finding("WARN", "imbalance", "the classes are extremely unequal", "expect a model that mostly answers with the largest "
                       "class; collect more of the others, or take some of it away", figures)
    return Finding("PASS", "imbalance", "no class is extremely rare or frequent", here=figures)


def size(share: Share) -> Finding:
    """Enough samples to train with."""
    n = len(share.train.labels)
    if n == 1 or share.batch == 1:
        return Finding("WARN", "few-samples", "every batch is one sample, which BatchNorm cannot normalise: its layers will use the "
                       "statistics that came from the others and leave them as they are", "collect more, or raise batch", f"{n} samples")
    if n < share.batch:
        return Finding("WARN", "few-samples", "there are fewer training samples than the run's batch: an epoch is one step of all of them",
                       "lower batch, or collect more", f"{n} samples, batch {share.batch}")
    return Finding("PASS", "few-samples", "enough training samples for a batch", here=f"{n} samples, batch {share.batch}")


def scored(share: Share) -> Finding:
    """There is something to score with."""
    n = len(share.test.labels)
    if not n:
        return Finding("WARN", "unscored", "there is no test image, so this client will have no score and count in no mean",
                       "add some, or raise test-fraction")
    return Finding("PASS", "unscored", "there are test images", here=f"{n} test samples")


def test_in_train(share: Share) -> Finding:
    """No test image is a training image: scores on it would measure memory."""
    train, test = share.train.content, share.test.content
    seen = np.isin(test.digests, train.digests)
    if not seen.any():
        return Finding("PASS", "test-in-train", "no test image is a training image" if len(test) else "there is no test image")
    position = {digest: i for i, digest in reversed(list(enumerate(train.digests.tolist())))}
    pairs = in_order(f"{share.test.name(i)} = {share.train.name(position[int(test.digests[i])])}" for i in np.flatnonzero(seen).tolist())
    figures = f"{seen.sum()} of {len(test)} test images ({100 * seen.mean():.1f} %)"
    if seen.all():
        return Finding("STOP", "test-in-train", "every test image is a training image too, so scores would say nothing",
                       "give test images of their own", figures, pairs)
    return Finding("WARN", "test-in-train", "some test images are training images too, so scores are too good",
                   "take them out of one of the two", figures, pairs)


def duplicates(share: Share) -> Finding:
    """No training image occurs twice, least of all with two labels."""
    train = share.train
    _, which, counts = np.unique(train.content.digests, return_inverse=True, return_counts=True)
    repeated = counts[which] > 1
    if not repeated.any():
        return Finding("PASS", "duplicates", "no training image occurs twice")
    labels = train.labels[: len(which)]
    lowest, highest = np.full(len(counts), np.iinfo(np.int64).max), np.full(len(counts), -1)
    np.minimum.at(lowest, which, labels)
    np.maximum.at(highest, which, labels)
    contradicting = (lowest < highest)[which]
    figures = f"{repeated.sum()} images, {(counts > 1).sum()} different ones"
    if contradicting.any():
        return Finding("WARN", "duplicates", "some training images occur more than once and with different labels",
                       "decide for one label and remove the others", f"{figures}; {contradicting.sum()} with different labels",
                       train.named(contradicting))
    return Finding("WARN", "duplicates", "some training images occur more than once",
                   "keep one of each, unless they were repeated on purpose", figures, train.named(repeated))


def constant(share: Share) -> Finding:
    """Every image shows something."""
    empty = share.train.named(share.train.content.constant) + share.test.named(share.test.content.constant)
    if empty:
        return Finding("WARN", "constant", "some images are of one colour only", "look at them: often a failed export or an empty scan",
                       f"{len(empty)} images", empty)
    return Finding("PASS", "constant", "every image has at least two different pixels")


def scale(share: Share) -> Finding:
    """Float pixels are on a scale that a model can train on."""
    contents = [part.content for part in (share.train, share.test) if len(part.content)]
    low, high = min(float(c.lowest.min()) for c in contents), max(float(c.highest.max()) for c in contents)
    figures = f"pixels from {low:g} to {high:g}"
    if not share.floats or high - low <= LARGEST_RANGE:
        return Finding("PASS", "scale", "pixels are on a usual scale", here=figures)
    if low >= 0 and high <= 255 and all(c.whole.all() for c in contents):
        return Finding("WARN", "scale", "the images are bytes (whole numbers 0 to 255) saved as floats, and floats are used as they are",
                       "save them as uint8: a quarter of the space, and scaled for the model", figures)
    return Finding("WARN", "scale", "float images are used as they are, and these are not normalised",
                   "bring them to about -2 to 2", figures)


def grey_mix(share: Share) -> Finding:
    """Images of three channels are coloured, or all of them are grey."""
    grey = np.concatenate([share.train.content.grey, share.test.content.grey])
    part = float(grey.mean())
    if FEWEST_MIXED <= part <= 1 - FEWEST_MIXED:
        names = share.train.named(share.train.content.grey) + share.test.named(share.test.content.grey)
        return Finding("WARN", "grey-mix", "grey images stand among coloured ones, which a model can tell apart by that alone",
                       "fine if all classes have both; else make all grey (channels = 1), or leave one kind out",
                       f"{grey.sum()} of {len(grey)} ({100 * part:.1f} %) are grey", names)
    return Finding("PASS", "grey-mix", "no mixture of grey and coloured images")


CHECKS: tuple[Callable[[Share], Finding], ...] = (class_names, missing_classes, balance, size, scored, test_in_train, duplicates, constant,
                                                  scale, grey_mix)
