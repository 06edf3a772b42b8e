"""Runs side by side, each a process of its own: what is there is not made again, and a failed one is told and passed over."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue

from benchmarks.hdc_fl.configurations import CONFIGURATIONS, ROWS, Job, Settings
from benchmarks.hdc_fl.cost import estimate, hours, of_machine
from benchmarks.hdc_fl.images import Images, prepared
from benchmarks.hdc_fl.process import owned, run_until_gone, sweep_out
from benchmarks.hdc_fl.results import MixedResults, Result, machine, read_all, there


@dataclass(frozen=True)
class Bench:
    """Where and how runs are made.

    Attributes
    ----------
    source, work, results : folders of the images as they came, of files made from them, and of the JSONs.
    gpus : numbers of those to share out among the runs side by side; empty leaves the machine as it is.
    keep : folder for the runs' own folders, "" for none.
    """

    source: Path
    work: Path
    results: Path
    jobs: int = 1
    gpus: tuple[str, ...] = ()
    keep: str = ""
    machine: str = ""
    limit: int = 0
    slots: SimpleQueue[str] = field(default_factory=SimpleQueue, compare=False)

    def __post_init__(self) -> None:
        for number in range(self.jobs):
            self.slots.put(self.gpus[number % len(self.gpus)] if self.gpus else "")


def run(job: Job, bench: Bench) -> Result:
    """One run in a process of its own, or what another sweep made meanwhile; raises ``RuntimeError`` with the end of its complaint."""
    if made := there(job, bench.results):
        return made
    images = prepared(job.scale, job.cell.data, job.tuning, bench.source, bench.work, bench.limit)
    told = bench.work / owned(job.name, "job")
    into = bench.results / f"{job.name}.json"
    told.write_text(json.dumps({"name": job.name, "scale": job.scale, "configuration": job.configuration, "row": job.row, "seed": job.seed,
                                "settings": dict(job.settings), "images": asdict(images) | {"path": str(images.path)}, "into": str(into),
                                "work": str(bench.work), "keep": bench.keep, "machine": bench.machine, "jobs": bench.jobs,
                                "reclustered": reclustered_of(job)}))
    slot = bench.slots.get()
    try:
        alone = {"OMP_NUM_THREADS": "1", **({"CUDA_VISIBLE_DEVICES": slot} if slot else {})}
        done = run_until_gone(["benchmarks.hdc_fl.one_run", str(told)], alone)
    finally:
        bench.slots.put(slot)
        told.unlink()
    if done.returncode:
        raise RuntimeError(f"{job.name}: {done.stderr[-2000:] or f'exit code {done.returncode}'}")
    found = there(job, bench.results)
    assert found is not None
    return found


def reclustered_of(job: Job) -> dict[str, Settings]:
    """The rows that come out of the run of ``job``, by what makes them."""
    return {name: {key: value for key, value in row.settings.items() if key != "method"}
            for name, row in ROWS.items() if row.reclustered and row.as_of == job.row}


def run_all(jobs: Sequence[Job], bench: Bench) -> list[str]:
    """Every run that is not there yet; what went wrong, one text a failed run, which the others do not wait for."""
    make_ready(bench)
    before = read_all(bench.results)
    known = of_machine(before, machine(bench.machine)["id"])
    todo = [job for job in jobs if there(job, bench.results) is None]
    left = {job.name: estimate(job, known, bench.limit) for job in todo}
    print(f"{len(jobs) - len(todo)} of {len(jobs)} runs are there; about {hours(sum(left.values()) / bench.jobs)} to go", flush=True)
    for scale, data, tuning in {(job.scale, job.cell.data, job.tuning) for job in todo}:
        images = prepared(scale, data, tuning, bench.source, bench.work, bench.limit)
        check_images(images, data, before)
        print(f"{data} classes: {images.title}", flush=True)
    failed: list[str] = []
    reckoned, began, done = 0.0, time.monotonic(), 0
    pool = ThreadPoolExecutor(bench.jobs)
    try:
        running = {pool.submit(run, job, bench): job for job in todo}
        for future in as_completed(running):
            job, done = running[future], done + 1
            reckoned += left.pop(job.name)
            pace = (time.monotonic() - began) / max(reckoned, 1e-9)
            try:
                told = line(future.result())
            except Exception as fault:  # whatever it was, the other runs do not wait for it
                failed.append(f"{job.name}: {fault!r}" if job.name not in str(fault) else str(fault))
                told = f"FAILED {failed[-1]}"
            print(f"[{done}/{len(todo)}, {hours(pace * sum(left.values()))} left] {told}", flush=True)
    finally:
        # on Ctrl-C the terminal has told the runs at work too; those that wait need not begin
        pool.shutdown(cancel_futures=True)
    return failed


def make_ready(bench: Bench) -> None:
    """Both folders, before anything is trained for them; raises ``OSError`` if one cannot be written to."""
    for folder in (bench.work, bench.results):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    sweep_out(bench.work)


def check_images(images: Images, data: str, results: Sequence[Result]) -> None:
    """Raise ``MixedResults`` if ``results`` were made from other images: no table would take both, so nothing need run."""
    for r in results:
        of = r.content["images"]
        if CONFIGURATIONS[r.configuration].data == data and of["digest"] != images.digest:
            raise MixedResults(f"{r.name} in the folder of results is from {of['title']} (digest {of['digest']}), and these runs would be "
                               f"from {images.title} ({images.digest}): move the results away, or name another folder with --results")


def line(found: Result) -> str:
    """One run for the terminal."""
    served, took = found.content["served"], found.content["seconds"]
    figures = "  ".join(f"{key} {100 * served[key]:5.1f}" for key in ("mean", "worst", "bottom20"))
    ari = (found.content.get("clusters") or {}).get("adjusted_rand")
    told = f"{found.name:36s} {figures}  cpu {took['cpu']:.0f} s  wall {took['wall']:.0f} s"
    return told + (f"  ari {ari:.2f}" if ari is not None else "")
