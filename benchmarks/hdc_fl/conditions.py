"""Under which conditions results came about: the budget, the search, what was dropped, which code, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.command_line import differences
from benchmarks.hdc_fl.configurations import LOWER, PLAIN, ROWS, Settings, planned
from benchmarks.hdc_fl.results import BUDGET, MixedResults, Result
from benchmarks.hdc_fl.text import markdown, points


def check_chosen(results: Iterable[Result], tuned: Mapping[str, Any]) -> None:
    """Raise ``MixedResults`` unless every run is the one that is planned, with the values that the search chose for it.

    What a look may change (rounds, say) is not compared here: runs of one table must agree in it, which ``check_comparable`` sees to.
    """
    chosen = tuned["chosen"] if tuned else {}
    for r in results:
        if r.row not in ROWS:
            continue
        if chosen and (ROWS[r.row].as_of or r.row) not in chosen:
            raise MixedResults(f"{r.name} is of a method that was not searched: run benchmarks.hdc_fl.tune, or keep the file elsewhere")
        # one job, or none for rows that come out of another's run
        for job in planned(r.content["scale"], (r.configuration,), (r.row,), (r.seed,), chosen, {}):
            had, wanted = ({k: v for k, v in of.items() if k not in BUDGET} for of in (r.content["settings"], job.settings))
            if differing := differences(had, wanted):
                raise MixedResults(f"{r.name} was not run as it is planned ({differing}): delete it, and the sweep makes it anew")


def costs(results: Sequence[Result], tuned: Mapping[str, Any]) -> str:
    """Core-hours by machine, and CPU by method beside FedPer's on the same machine and configuration; machines are never mixed."""
    lines = [f"- the search: {tuned['core_hours']:.2f} core-hours, of the tries that ended"] if tuned else []
    for identity in dict.fromkeys(r.content["machine"]["id"] for r in results):
        mine = [r for r in results if r.content["machine"]["id"] == identity]
        of = mine[0].content["machine"]
        cpu, wall = (sum(r.content["seconds"][key] for r in mine) / 3600 for key in ("cpu", "wall"))
        base = {(r.configuration, r.seed): r.content["seconds"]["cpu"] for r in mine if r.row == PLAIN}
        ratios = {row: [r.content["seconds"]["cpu"] / base[r.configuration, r.seed] for r in mine
                        if r.row == row and (r.configuration, r.seed) in base] for row in dict.fromkeys(r.row for r in mine)}
        told = ", ".join(f"{row} {mean(found):.2f}" for row, found in ratios.items() if found)
        kind = of["gpu"] or f"{of['cpu']}, {of['cores']} cores"
        lines.append(f"- machine {identity} ({kind}): {len(mine)} runs, {cpu:.2f} core-hours, {wall:.2f} hours at work. "
                     f"CPU beside FedPer's: {told or '–'}")
    return "\n".join(lines) + "\n"


def budgets(results: Sequence[Result]) -> str:
    """What every run had."""
    of = results[0].content["settings"]
    each = sorted({tuple(r.content["settings"][key] for key in ("clients", "rounds", "epochs", "batch")) for r in results})
    images = sorted({(r.content["images"]["title"], *(sum(r.content["clients"][key]) for key in ("n_train", "n_test"))) for r in results})
    return ("Of " + "; of ".join("{}, {:,} images to train on and {:,} to test on".format(*counts) for counts in images)
            + ". Every method, in a configuration: the same split, model, first weights, clients, rounds, local epochs and batch ("
            + "; ".join("{} clients, {} rounds of {} epochs, batch {}".format(*values) for values in each)
            + f"), SGD with momentum {of.get('momentum', 0.9)}, BatchNorm recomputed on each client's own training images before scoring. "
            "Beside these epochs a method makes its own passes: Ditto trains a second model, FedRep fits heads, FedBABU and fedavg-ft "
            "fine-tune once at the end; what that costs stands under Cost.\n")


def search(tuned: Mapping[str, Any], scale: str) -> str:
    """How settings were chosen, and which."""
    if not tuned:
        return "Settings are the defaults: no search has been made.\n"
    told = (f"Learning rate, and one setting of its own where a method has one, were searched for every method on {tuned['images']}, "
            f"configuration {tuned['configuration']}, on a validation split of the training images: {tuned['tries']} tries each, of "
            f"{tuned['rounds']} rounds; chosen by {tuned['criterion']}.\n")
    rows = [[row, listed(chosen), f"{points(tuned['scores'][row][0])} to {points(tuned['scores'][row][1])}"]
            for row, chosen in tuned["chosen"].items()]
    lower = [f"{row} in configuration {number} ({listed(settings)})" for (at, number, row), settings in LOWER.items() if at == scale]
    less = f"With what was chosen training diverges in every client of {' and '.join(lower)}: there it has this.\n" if lower else ""
    return "\n".join([told, markdown(["method", "chosen", "validation, worst to best try"], rows), less])


def listed(settings: Settings) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items())


def troubles(results: Iterable[Result]) -> str:
    """Runs in which updates were dropped or rounds void, and the code they ran on."""
    results = list(results)
    noted = [f"{r.name}: {r.content.get('void_rounds', 0)} void rounds, dropped {dict(r.content.get('dropped') or {}) or 'nothing'}"
             for r in results if r.content.get("dropped") or r.content.get("void_rounds")]
    code = sorted({(r.content.get("versions") or {}).get("fedhearth-code", "unknown") for r in results})
    return (f"{'No update was dropped and no round void' if not noted else 'Not all went well: ' + '; '.join(noted)}, in {len(results)} "
            f"runs. Digest{'s' * (len(code) > 1)} of the code they ran on: {', '.join(code)}.\n")
