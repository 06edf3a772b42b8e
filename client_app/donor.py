"""A recipient's half of the donor swap: another client's encoder with this client's own head, on its own test images.

Nothing is trained and nothing is kept. BatchNorm is treated as in all scoring: under ``bn = recompute`` the score has statistics
of this client's training images, and the raw one those that came with the encoder. The head is that of the personal model which
the closing evaluation left here. What leaves are the two scores; a client without test images sends none.
"""

from __future__ import annotations

from client_app.data.client_data import ClientData
from client_app.learner import Learner, Reply, Trainer
from client_app.local.store import LocalStore, StoreError
from client_app.personal_facts import PERSONAL
from strategies.config import ConfigError
from strategies.donor_swap import ACCURACY, DONOR
from strategies.types import Slots


def score_donor(learner: Learner, inbound: Slots, data: ClientData, store: LocalStore) -> Reply:
    """Raises ``StoreError`` without a personal model, ``ConfigError`` for a method whose model is no encoder with a head."""
    trainer = getattr(learner, "trainer", None)
    if not isinstance(trainer, Trainer):
        raise ConfigError("a donor swap needs a method of an encoder and a head; this one's model is another")
    kept = store.exported(PERSONAL)
    if kept is None or "head" not in kept:
        raise StoreError("this site has no personal model of this run to take its head from; the closing evaluation leaves one")
    return Reply(metrics=trainer.score_with(inbound[DONOR], kept["head"], data, ACCURACY))
