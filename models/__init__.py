"""What a client trains: an encoder that can be shared and a head that can stay home."""

from models.split import PARTS, SplitModel, batchnorms, build_model, has_batchnorm, shared_buffers

__all__ = ["PARTS", "SplitModel", "batchnorms", "build_model", "has_batchnorm", "shared_buffers"]
