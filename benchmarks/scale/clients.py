"""Memory and time with 100 and with 10,000 clients, 100 of them asked in each round.

    python benchmarks/scale/clients.py [--clients 100 10000] [--asked 100] [--rounds 20] [--workers 2] [--method fedper]
                                       [--out benchmarks/scale/clients.json]

Nothing on the server or in a worker may grow with clients x model: the bar is a peak, over all processes of a run from start
to end, within 1.3 x of the first row's. Memory is resident memory summed over the processes; ``own`` is that without libraries.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

from watched import keep, machine, options, tiny_run, watch

BAR = 1.3


def row(clients: int, asked: int, rounds: int, workers: int, method: str, engine: str) -> dict[str, float | int | str]:
    settings = tiny_run(method, clients, asked, rounds, lr=0.05)
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        out = Path(folder, "run")
        seen = watch(settings, out, workers, period=0.5, engine=engine)
        if seen.code or len(seen.rounds) != rounds:
            sys.exit(f"the run of {clients} clients failed:\n{out.with_name('run.txt').read_text()[-2000:]}")
        sizes = {file.name: file.stat().st_size for file in out.iterdir() if file.is_file()}
        state = sum(file.stat().st_size for file in out.rglob("*") if file.is_file() and "clients" in file.parts)
    first, last = seen.rounds[0], seen.rounds[-1]
    steps = [b - a for a, b in zip(seen.rounds, seen.rounds[1:], strict=False)]
    return {"clients": clients, "asked": asked, "rounds": rounds, "workers": workers, "method": method, "engine": engine,
            "peak_mib": seen.peak_mib(), "peak_own_mib": seen.peak_own_mib, "peak_mib_until_first_round": seen.peak_mib(0, first),
            "peak_mib_in_rounds": seen.peak_mib(first, last), "peak_mib_at_the_end": seen.peak_mib(last),
            "seconds_until_first_round": first, "seconds_a_round": median(steps),
            "seconds_at_the_end": seen.seconds - last, "seconds": seen.seconds, "cpu_seconds": seen.samples[-1][3],
            "report_bytes": sizes["report.html"], "rounds_bytes": sizes["rounds.jsonl"], "state_bytes": state}


def main() -> None:
    parser = options(__doc__, asked=100, rounds=20)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 10_000])
    a = parser.parse_args()
    before, rows = machine(), []
    for clients in a.clients:
        rows.append(row(clients, a.asked, a.rounds, a.workers, a.method, a.engine))
        told = (f"{key}={value:.1f}" if isinstance(value, float) else f"{key}={value}" for key, value in rows[-1].items())
        print(*told, flush=True)
    ratio = rows[-1]["peak_mib"] / rows[0]["peak_mib"]  # type: ignore[operator]
    own = rows[-1]["peak_own_mib"] / rows[0]["peak_own_mib"]  # type: ignore[operator]
    print(f"peak memory, {a.clients[-1]} clients against {a.clients[0]}: {ratio:.2f} (bar {BAR}), without libraries {own:.2f}")
    keep(a.out, {"machine": before, "rows": rows, "peak_ratio": ratio, "peak_own_ratio": own, "bar": BAR})
    if ratio > BAR:
        sys.exit("over the bar")


if __name__ == "__main__":
    main()
