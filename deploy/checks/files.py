"""Keys, certificates and folders on this machine's disk."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key, load_ssh_public_key

from deploy.certs import ALWAYS, names_of
from deploy.checks import Finding, failed, passed, warned
from deploy.checks.network import expiry
from deploy.state_dir import open_to_others

VERSIONS = 2  # a site keeps the acknowledged version and the one trained since
SPARE = 3


def private(check: str, path: Path) -> Finding:
    """A private key that nobody but its owner may read."""
    try:
        mode = path.stat().st_mode
        path.open("rb").close()
    except FileNotFoundError:
        return failed(check, f"{path} does not exist; it comes from `fedhearth certs`")
    except OSError as error:
        return failed(check, f"{path} cannot be read ({error.strerror}); chown it to the user that runs this")
    if os.name != "nt" and mode & 0o077:
        return failed(check, f"{path} can be read by others (mode {stat.S_IMODE(mode):04o}); chmod 600 {path}")
    return passed(check, f"{path}, for its owner only")


def site_key(path: Path) -> tuple[list[Finding], ec.EllipticCurvePrivateKey | None]:
    """A site's private key: its mode, and whether Flower can use it."""
    first = private("key", path)
    if first.verdict == "FAIL" and "mode" not in first.text:
        return [first], None
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return [first, failed("key", f"{path} is not an OpenSSH private key of a NIST curve without a passphrase; make one with "
                                     "`fedhearth certs --site NAME` or `ssh-keygen -t ecdsa -b 384 -N ''`")], None
    return [first], key


def server_certificate(certs: Path) -> Iterator[Finding]:
    """``ca.crt``, ``server.pem`` and ``server.key`` belong together and are in date."""
    yield private("server key", certs / "server.key")
    if (certs / "ca.key").exists():
        yield private("ca key", certs / "ca.key")
    try:
        ca, own = (x509.load_pem_x509_certificate((certs / name).read_bytes()) for name in ("ca.crt", "server.pem"))
        key = load_pem_private_key((certs / "server.key").read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        yield failed("certificate", f"{certs} lacks a usable ca.crt, server.pem or server.key ({error}); make them with `fedhearth certs`")
        return
    try:
        own.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        yield failed("certificate", "server.pem was not signed by ca.crt; renew it: fedhearth certs --rotate-server")
        return
    if own.public_key() != key.public_key():
        yield failed("certificate", "server.key is not the key of server.pem; renew both: fedhearth certs --rotate-server")
        return
    yield passed("certificate", "server.pem is signed by ca.crt and fits server.key")
    yield expiry("expiry", own, "fedhearth certs --rotate-server")
    yield expiry("ca expiry", ca, "a new CA is a new federation; RUNBOOK: rotating certificates and keys")
    yield from server_names(names_of(own))


def server_names(known: list[str]) -> Iterator[Finding]:
    """The names that the certificate is for."""
    lacking = [name for name in ALWAYS if name not in known]
    if lacking:
        yield failed("names", f"the certificate lacks {', '.join(lacking)}, which the SuperLink's own ServerApp uses; "
                              "renew it: fedhearth certs --rotate-server")
    elif set(known) == set(ALWAYS):
        yield warned("names", "the certificate is for this machine alone; for sites elsewhere: "
                              "fedhearth certs --rotate-server --server NAME_OR_IP")
    else:
        yield passed("names", f"the certificate is for {', '.join(known)}")


def site_keys(folder: Path) -> Iterator[Finding]:
    """Every public key that may be registered, and private keys that should be at their sites."""
    public = sorted(folder.glob("[!.]*.pub"))
    if not public:
        yield warned("site keys", f"none in {folder}; nobody can join yet: fedhearth certs --site NAME")
        return
    wrong = [path.name for path in public if not _is_ec_public(path)]
    if wrong:
        yield failed("site keys", f"{', '.join(wrong)}: not an OpenSSH public key of a NIST curve; ask the site for it again")
    else:
        yield passed("site keys", ", ".join(path.stem for path in public))
    here = [path.stem for path in public if path.with_suffix("").exists()]
    if here:
        yield warned("site keys", f"the private keys of {', '.join(here)} lie on this machine; hand each to its site and delete it here "
                                  "(on a test with all sites on one machine: fine)")


def _is_ec_public(path: Path) -> bool:
    try:
        return isinstance(load_ssh_public_key(path.read_bytes()), ec.EllipticCurvePublicKey)
    except (OSError, ValueError, UnsupportedAlgorithm):
        return False


def folder(path: Path, need: float) -> Iterator[Finding]:
    """``path`` (or what is to hold it) can be written to and has ``need`` GiB free."""
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=there):
            pass
    except OSError as error:
        yield failed("state dir", f"{there} cannot be written to ({error.strerror}); chown it to the user that runs this, "
                                  "or give another --state-dir")
        return
    if there == path and (told := open_to_others(path)):
        yield warned("state dir", told)
    else:
        yield passed("state dir", f"{path} {'can be written to' if there == path else 'does not exist yet and can be made'}")
    free = shutil.disk_usage(there).free / 2**30
    text = f"{free:.1f} GiB free, {need:.2g} needed"
    yield (passed if free >= need else failed)("space", text if free >= need else f"{text}; free some, or give another --state-dir")


def needed(model_bytes: int) -> float:
    """GiB a site's state may come to: a model a version, three times over for temporary and finished copies."""
    return SPARE * VERSIONS * model_bytes / 2**30


def unlocked(path: Path, who: str) -> Finding:
    """Nobody holds the lock file ``path``; taken and given back at once."""
    from filelock import FileLock, Timeout

    if not path.exists():
        return passed("lock", f"no {who} is running here")
    try:
        with FileLock(path, timeout=0):
            return passed("lock", f"no {who} is running here")
    except Timeout:
        return warned("lock", f"a {who} is running here with this state directory; a second one will be refused")
    except OSError as error:
        return failed("lock", f"{path} cannot be opened ({error.strerror}); chown it to the user that runs this")
