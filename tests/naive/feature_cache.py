"""A feature cache as a dictionary, with no bound and no disk; and the mistake that METHODS 2.1 warns of."""

from __future__ import annotations

import numpy as np


class NaiveCache:
    """One entry a sample; ``versioned = False`` leaves the version out of the key."""

    def __init__(self, dtype, versioned=True):
        self.dtype, self.versioned, self.held = dtype, versioned, {}

    def put(self, ids, version, features, round_number=0, confidence=0.0):
        for i, sample in enumerate(ids):
            if all(np.isfinite(features[i])):
                kept = np.minimum(np.maximum(features[i], -65504), 65504) if self.dtype == "float16" else features[i]
                self.held[sample] = {"version": version, "features": np.array(kept, self.dtype), "round": round_number, "uses": 0,
                                     "confidence": confidence, "marked": False}

    def get(self, sample, version):
        entry = self.held.get(sample)
        if entry is None or (self.versioned and version is not None and entry["version"] != version):
            return None
        return entry

    def touch(self, ids):
        for sample in ids:
            if sample in self.held:
                self.held[sample]["uses"] += 1

    def mark(self, ids):
        for sample in ids:
            if sample in self.held:
                self.held[sample]["marked"] = True

    def invalidate(self, before_version):
        self.drop([sample for sample, entry in self.held.items() if entry["version"] < before_version])

    def drop(self, ids):
        for sample in ids:
            self.held.pop(sample, None)
