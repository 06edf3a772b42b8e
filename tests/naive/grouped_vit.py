"""A ViT with shared and group prompts one sample and one token at a time, on the loops of ``naive.prompted_vit``."""

from __future__ import annotations

import math

import torch

from tests.naive.prompted_vit import block_output, first_tokens, layer_norm, linear


def cosine(a, b):
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


@torch.no_grad()
def plain_feature(vit, image):
    """The normalised CLS token of the backbone alone."""
    tokens = first_tokens(vit, image)
    for block in vit.blocks:
        tokens = block_output(block, tokens)
    return layer_norm(vit.norm, tokens[0])


@torch.no_grad()
def logits(model, image):
    """Logits (C,) of one image, and the group it picks."""
    vit = model.vit
    query = plain_feature(vit, image)
    nearness = [cosine(query, key.double()) for key in model.keys]
    group = nearness.index(max(nearness))
    cls, *rest = first_tokens(vit, image)
    shared, grouped = [], []
    for layer, block in enumerate(vit.blocks, start=1):
        if layer in model.config.shared_at:
            shared = [token.double() for token in model.shared[model.config.shared_at.index(layer)]]
        if layer in model.grouping.group_layers:
            place = model.grouping.group_layers.index(layer)
            grouped = [*[token.double() for token in model.groups[group, place]], *grouped]
        out = block_output(block, [cls, *grouped, *shared, *rest])
        cls, out = out[0], out[1:]
        grouped, out = out[: len(grouped)], out[len(grouped):]
        shared, rest = out[: len(shared)], out[len(shared):]
    read = [layer_norm(vit.norm, token) for token in [cls, *grouped]]
    return linear(model.head, sum(read) / len(read)), group
