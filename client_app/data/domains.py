"""Partitions by columns of the data: ``domain`` (where a sample is from) and ``client`` (whose it is).

How clients are dealt to domains is our own choice: in turn, so that any two domains differ by at most one client.
"""

from __future__ import annotations

import numpy as np

from client_app.data.partition import Meta, Partition, PartitionError, check_clients, iid


def domain(
    labels: np.ndarray, meta: Meta, clients: int, rng: np.random.Generator, *, domains_per_client: int = 1, inside: Partition = iid
) -> list[np.ndarray]:
    """Each client has samples of ``domains_per_client`` domains; ``inside`` divides a domain among its clients.

    With D domains in the order of their names, client i draws from domains n*i, n*i + 1, ..., n*i + n - 1 modulo D.

    Raises
    ------
    PartitionError
        If there is no ``domain`` column, it has gaps, it has more domains than the clients can cover or fewer than
        ``domains_per_client``, or as ``inside`` does about one domain.
    """
    check_clients(labels, clients)
    names, codes = column_of(meta, "domain", len(labels))
    holders = _holders(len(names), clients, domains_per_client)
    pieces: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for code, held_by in enumerate(holders):
        pool = np.flatnonzero(codes == code)
        try:
            parts = inside(labels[pool], {key: values[pool] for key, values in meta.items()}, len(held_by), rng)
        except PartitionError as error:
            raise PartitionError(f"one of the {len(names)} domains, shared by {len(held_by)} clients: {error}") from None
        for client, part in zip(held_by, parts, strict=True):
            pieces[client].append(pool[part])
    return [rng.permutation(np.concatenate(piece)) for piece in pieces]


def domains_of(client: int, domains: int, each: int) -> list[int]:
    """The domains, 0..D-1 in rising order, from which ``client`` draws."""
    return sorted((each * client + k) % domains for k in range(each))


def natural(labels: np.ndarray, meta: Meta, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """One client a value of the ``client`` column, in the order of the values.

    With fewer clients than values, a random choice of the values takes part and the other samples stay unused.

    Raises
    ------
    PartitionError
        If there is no ``client`` column, it has gaps, or it has fewer values than there should be clients.
    """
    check_clients(labels, clients)
    names, codes = column_of(meta, "client", len(labels))
    if clients > len(names):
        raise PartitionError(f"the `client` column has {len(names)} values, one a client, but clients={clients}; "
                             f"set clients={len(names)} or fewer")
    order = np.argsort(codes, kind="stable")
    everyone = np.split(order, np.searchsorted(codes[order], np.arange(1, len(names))))
    return [rng.permutation(everyone[code]) for code in np.sort(rng.permutation(len(names))[:clients])]


def column_of(meta: Meta, name: str, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """The sorted values of a column and each sample's place among them (n,).

    Raises
    ------
    PartitionError
        If the column is missing, or empty for some samples.
    """
    if name not in meta:
        raise PartitionError(f"this partition needs a `{name}` column, which the data does not have; give it one, or use "
                             "another partition")
    values, codes = np.unique(meta[name], return_inverse=True)
    if (values == "").any():
        raise PartitionError(f"the `{name}` column is empty for {np.sum(meta[name] == '')} of {samples} samples; fill it in, or "
                             "leave those samples out")
    return values, codes


def _holders(domains: int, clients: int, each: int) -> list[list[int]]:
    """For each domain, the clients that draw from it."""
    if not 1 <= each <= domains:
        raise PartitionError(f"expected domains-per-client in 1..{domains}, the number of domains in the data, got {each}")
    if clients * each < domains:
        raise PartitionError(f"the data has {domains} domains, but {clients} clients with domains-per-client={each} cover "
                             f"{clients * each}; set domains-per-client={-(-domains // clients)} or clients={-(-domains // each)}")
    holders: list[list[int]] = [[] for _ in range(domains)]
    for client in range(clients):
        for code in domains_of(client, domains, each):
            holders[code].append(client)
    return holders
