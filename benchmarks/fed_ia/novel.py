"""Base and novel classes: finished personal models, asked about classes that no client has trained with.

Prompts, meta-nets and gates do not depend on the classes, so the same model is built around other class names. What does (local logistic
regression, a class mask, a class prior) has no answer.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np


def novel_accuracy(clients: Path, data: Path, features_dir: str) -> dict[str, float]:
    """Accuracy of every client's model in the folder ``clients`` on the test images of ``data``; nothing for methods tied to classes."""
    from client_app.clip_features import Source, tower_version
    from client_app.clip_trainer import load_experts
    from client_app.loop_settings import LoopSettings
    from client_app.personal import load_personal
    from client_app.precomputed import Precomputed

    with np.load(data) as file:
        images, labels, names = file["x_test"].transpose(0, 3, 1, 2), file["y_test"], tuple(file["class_names"].astype(str))
    found: dict[str, float] = {}
    model = ready = None
    for folder in sorted(path for path in clients.iterdir() if (path / "personal.safetensors").is_file()):
        personal = load_personal(folder)
        plain = personal.facts.method == "zero-shot" and bool(personal.kept["local"]["present"].all())
        if personal.facts.method == "local-logistic" or (personal.facts.method == "zero-shot" and not plain):
            return {}
        settings = personal.facts.parsed
        if model is None:
            model = settings.build_model(len(names), personal.input_shape)
            source = Source(model.image, model.patch_source)
            ready = Precomputed.open(Path(features_dir), tower_version(source, LoopSettings.from_config(settings.run)), True)
        net = model.fresh(names)
        for part in () if plain else net.parts:
            net.load(part, personal.kept[part])
        load_experts(net, personal.kept)
        found[folder.name] = _accuracy(net, ready, images, labels)
    return found


def _accuracy(net: object, ready: object, images: np.ndarray, labels: np.ndarray, chunk: int = 128) -> float:
    import torch

    from client_app.clip_trainer import anchors_of, features_of

    anchors, right = anchors_of(net), 0  # type: ignore[arg-type]
    with torch.inference_mode():
        for start in range(0, len(images), chunk):
            rows = ready.rows(images[start:start + chunk])  # type: ignore[attr-defined]
            cls, patches = torch.from_numpy(ready.cls(rows)), torch.from_numpy(ready.patches(rows))  # type: ignore[attr-defined]
            logits = net(features_of(net, anchors, cls, patches))  # type: ignore[operator,arg-type]
            right += int((logits.argmax(1).numpy() == labels[start:start + chunk]).sum())
    return right / len(images)
