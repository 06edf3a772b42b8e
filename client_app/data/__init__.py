"""A client's data: what it is (``ClientData``), where it comes from, how a simulation divides it."""

from client_app.data.client_data import ClientData, DataError, Split
from client_app.data.opening import open_data
from client_app.data.partition import PartitionError
from client_app.data.split_manifest import data_digest, manifest, write_manifest

__all__ = ["ClientData", "DataError", "PartitionError", "Split", "data_digest", "manifest", "open_data", "write_manifest"]
