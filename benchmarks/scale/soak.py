"""A long run: do a round's time and the memory stay level?

    python benchmarks/scale/soak.py [--clients 20] [--asked 20] [--rounds 200] [--workers 2] [--method fedper]
                                    [--out benchmarks/scale/soak.json]

Compares rounds 180-200 with rounds 10-30: CPU seconds a round, medians of wall seconds a round and of the memory of all processes
(resident, without libraries). The bar is a ratio of at most 1.05 for CPU time and for memory; wall time means something on a
quiet machine only.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

from watched import Watched, keep, machine, options, tiny_run, watch

BAR = 1.05


def spans(rounds: int) -> dict[str, tuple[int, int]]:
    """The rounds that are compared, in 200 rounds 10 to 30 and 180 to 200; the same shares of a shorter run."""
    return {"early": (rounds // 20, 3 * rounds // 20), "late": (rounds - rounds // 10, rounds)}


def level(seen: Watched, first: int, last: int) -> dict[str, float]:
    """Medians over the rounds ``first + 1`` to ``last``."""
    ends = seen.rounds[first - 1:last]
    cpu = [seen.cpu_at(moment) for moment in ends]
    memory = [own for t, _, own, _ in seen.samples if ends[0] <= t <= ends[-1]]
    # CPU time is told in hundredths of a second and sampled in between: over a span, not a round at a time
    steps = [b - a for a, b in zip(ends, ends[1:], strict=False)]
    return {"cpu_seconds": (cpu[-1] - cpu[0]) / (len(ends) - 1), "wall_seconds": median(steps), "mib": median(memory)}


def main() -> None:
    parser = options(__doc__, asked=20, rounds=200)
    parser.add_argument("--clients", type=int, default=20)
    a = parser.parse_args()
    settings = tiny_run(a.method, a.clients, a.asked, a.rounds, lr=0.01)
    before = machine()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        out = Path(folder, "run")
        seen = watch(settings, out, a.workers, period=0.05, engine=a.engine)
        if seen.code or len(seen.rounds) != a.rounds:
            sys.exit(f"the run failed:\n{out.with_name('run.txt').read_text()[-2000:]}")
    found = {name: level(seen, *span) for name, span in spans(a.rounds).items()}
    ratios = {key: found["late"][key] / found["early"][key] for key in found["early"]}
    for key, ratio in ratios.items():
        print(f"{key}: {found['early'][key]:.4f} early, {found['late'][key]:.4f} late, ratio {ratio:.3f}")
    keep(a.out, {"machine": before, "settings": settings, "workers": a.workers, "engine": a.engine, "spans": spans(a.rounds), **found,
                 "ratios": ratios, "bar": BAR, "seconds": seen.seconds})
    if max(ratios["cpu_seconds"], ratios["mib"]) > BAR:
        sys.exit(f"over the bar of {BAR}")


if __name__ == "__main__":
    main()
