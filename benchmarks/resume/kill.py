"""Kill -9 a small HDC-FL run at random moments, resume it, and compare it bit for bit with an undisturbed one.

    python -m benchmarks.resume.kill --count 10 --out kill.json

Prints a table and writes it as JSON; exits with 1 if any resumed run differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.kills import CONFIG, Killed, kill_and_resume


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=10, help="kills, spread over the run")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, default=Path("kill.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        killed = kill_and_resume(Path(folder), arguments.count, arguments.seed)
    print(table(killed))
    found = {"config": dict(CONFIG), "seed": arguments.seed, "same": sum(k.same for k in killed), "of": len(killed),
             "kills": [asdict(k) for k in killed]}
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(k.same for k in killed) else 1


def table(killed: list[Killed]) -> str:
    """One line a kill, and the sum."""
    lines = ["killed after   still running   rounds done   final state"]
    lines += [f"{k.delay:10.2f} s   {'yes' if k.running else 'no':>13}   {k.rounds_done:11d}   {'identical' if k.same else 'DIFFERS'}"
              for k in killed]
    return "\n".join([*lines, f"{sum(k.same for k in killed)} of {len(killed)} resumed runs are bit-identical to the undisturbed one"])


if __name__ == "__main__":
    sys.exit(main())
