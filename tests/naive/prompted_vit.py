"""A prompted ViT one sample, one token and one head at a time, in float64, from the weights alone.

Knows timm's names for weights but none of its modules except the activation.
"""

from __future__ import annotations

import math

import torch


def layer_norm(norm, vector):
    if not hasattr(norm, "weight"):  # timm puts an identity where a model has no such norm
        return vector
    mean = sum(vector) / len(vector)
    variance = sum((v - mean) ** 2 for v in vector) / len(vector)
    return (vector - mean) / math.sqrt(variance + norm.eps) * norm.weight.double() + norm.bias.double()


def linear(layer, vector):
    out = layer.weight.double() @ vector
    return out if layer.bias is None else out + layer.bias.double()


def attention(attn, tokens):
    """What every token gets from all tokens."""
    width = len(tokens[0])
    per_head = width // attn.num_heads
    triples = [linear(attn.qkv, token).split(width) for token in tokens]
    result = []
    for query, _, _ in triples:
        parts = []
        for head in range(attn.num_heads):
            here = slice(head * per_head, (head + 1) * per_head)
            strengths = [math.exp(float(query[here] @ key[here]) / math.sqrt(per_head)) for _, key, _ in triples]
            parts.append(sum(w / sum(strengths) * value[here] for w, (_, _, value) in zip(strengths, triples, strict=True)))
        result.append(linear(attn.proj, torch.cat(parts)))
    return result


def block_output(block, tokens):
    mixed = attention(block.attn, [layer_norm(block.norm1, token) for token in tokens])
    tokens = [token + more for token, more in zip(tokens, mixed, strict=True)]
    inner = [block.mlp.act(linear(block.mlp.fc1, layer_norm(block.norm2, token))) for token in tokens]
    return [token + linear(block.mlp.fc2, more) for token, more in zip(tokens, inner, strict=True)]


def first_tokens(vit, image):
    """CLS (and register tokens) and patches of one image (channels, S, S), as they enter the first block."""
    side, kernel = vit.patch_embed.patch_size[0], vit.patch_embed.proj
    patches = []
    for top in range(0, image.shape[1], side):
        for left in range(0, image.shape[2], side):
            pixels = image[:, top : top + side, left : left + side].double()
            token = torch.stack([(pixels * weight.double()).sum() for weight in kernel.weight])
            patches.append(token if kernel.bias is None else token + kernel.bias.double())
    registers = [] if vit.reg_token is None else list(vit.reg_token[0].double())
    prefix = [vit.cls_token[0, 0].double(), *registers]
    if vit.no_embed_class:
        tokens = prefix + [patch + place.double() for patch, place in zip(patches, vit.pos_embed[0], strict=True)]
    else:
        tokens = [token + place.double() for token, place in zip(prefix + patches, vit.pos_embed[0], strict=True)]
    return [layer_norm(vit.norm_pre, token) for token in tokens]


def mixture(cls, prototypes, prior, config):
    """s as a list over classes, for one CLS token."""
    known = [c for c, row in enumerate(prototypes) if any(float(v) != 0 for v in row)]
    mean = sum(prototypes[c] for c in known) / len(known) if known else 0
    scores = {}
    for c in known or range(len(prototypes)):
        cosine = 0.0
        if known:
            a, b = (cls - mean, prototypes[c] - mean) if config.cosine == "centred" else (cls, prototypes[c])
            size = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
            cosine = float(a @ b) / size if size > 1e-12 else 0.0
        scores[c] = {"log": cosine / config.tau + math.log(prior[c]), "scaled": prior[c] * cosine / config.tau,
                     "prior": math.log(prior[c]), "cosine": cosine / config.tau}[config.score]
    total = sum(math.exp(e) for e in scores.values())
    return [math.exp(scores[c]) / total if c in scores else 0.0 for c in range(len(prototypes))]


@torch.no_grad()
def trace(model, image, prior):
    """Logits (C,), CLS tokens entering the chosen layers, and s there, of one image."""
    config, vit = model.config, model.vit
    cls, *rest = first_tokens(vit, image)
    shared, appended, seen, weights = [], [], [], []
    for layer, block in enumerate(vit.blocks, start=1):
        if layer in config.shared_at:
            shared = list(model.shared[config.shared_at.index(layer)].double())
        mixed = []
        if layer in config.class_at:
            seen.append(cls)
            s = mixture(cls, model.prototypes[len(weights)].double(), prior, config)
            weights.append(s)
            mixed = [sum(s[c] * model.classes[c].double() for c in range(len(s)))]
        out = block_output(block, [cls, *mixed, *appended, *shared, *rest])
        cls, out = out[0], out[1:]
        if mixed and config.handling == "replace":
            out = out[1:]
        elif mixed:
            appended = [*mixed, *appended]
        appended, shared, rest = (out[: len(appended)], out[len(appended) : len(appended) + len(shared)],
                                  out[len(appended) + len(shared) :])
    logits = linear(model.head, layer_norm(vit.norm, cls))
    return logits, seen, weights
