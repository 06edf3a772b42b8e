"""A report.html in headless Chromium, as a desk and a phone show it, light and dark: what is wrong with it, one line a fault.

    pip install -e '.[browser]'; apt install chromium
    python benchmarks/report/browser.py RUN/report.html [--shots FOLDER]

Faults: an error in the console, a request to anything but the file, content wider than the page, a serious finding of axe-core, a
chart that is empty or does not answer to mouse and arrow keys, a table that does not sort, filter and choose, numbers that are
missing without script. Exits with 1 if there is one, and with 0 and SKIPPED where there is no Chromium or no Playwright.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

VIEWS = {"desk": (1280, 900), "phone": (390, 844)}
SERIOUS = ("serious", "critical")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """The path of a Chromium, from the environment variable CHROMIUM or the search path."""
    return os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


def missing() -> str:
    """What a look at a page lacks here; "" if it lacks nothing."""
    lacking = [name for name in ("playwright", "axe_playwright_python") if find_spec(name) is None]
    if lacking:
        return f"no {' and no '.join(lacking)}: pip install 'fedhearth[browser]'"
    return "" if chromium() else "no Chromium: install one (Debian: apt install chromium), or name it in CHROMIUM"


def faults(report: Path, shots: Path | None = None, views: tuple[str, ...] = tuple(VIEWS)) -> Iterator[str]:
    """Every fault of ``report`` in every view, light and dark, and without script; screenshots go to ``shots``."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # as root, in a container, Chromium's sandbox cannot start; the page is our own file
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for view in views:
            width, height = VIEWS[view]
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
            for fault in _look(page, report, shots and shots / f"{report.stem}-{view}"):
                yield f"{view}: {fault}"
            page.close()
        plain = browser.new_context(viewport={"width": VIEWS["phone"][0], "height": 844}, java_script_enabled=False)
        for fault in _without_script(plain.new_page(), report):
            yield f"without script: {fault}"
        browser.close()


def _look(page: Any, report: Path, shot: Path | None) -> Iterator[str]:
    """All in light; then the reader's system turns dark while the page is open, and what depends on colours is looked at again."""
    said: list[str] = []
    page.on("console", lambda message: said.append(f"console: {message.text}") if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("request", lambda request: None if request.url.startswith((report.absolute().as_uri(), "data:"))
            else said.append(f"request: {request.url}"))
    page.goto(report.absolute().as_uri())
    _picture(page, shot, "light")
    yield from _too_wide(page)
    yield from _axe(page)
    yield from _charts(page)
    yield from _tables(page)
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(50)
    _picture(page, shot, "dark")
    yield from (f"dark: {fault}" for fault in _axe(page))
    yield from said


def _picture(page: Any, shot: Path | None, scheme: str) -> None:
    if shot:
        page.screenshot(path=f"{shot}-{scheme}.png", full_page=True)


def _too_wide(page: Any) -> Iterator[str]:
    wide, room = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    if wide > room:
        yield f"{wide} pixels of content in {room}"


def _axe(page: Any) -> Iterator[str]:
    import axe_playwright_python

    # evaluated by the debugger, to which the page's content security policy does not apply
    page.evaluate(Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8") + "; 0")
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(result => result.violations)")
    for violation in found:
        if violation["impact"] in SERIOUS:
            where = ", ".join(" ".join(node["target"]) for node in violation["nodes"][:4])
            yield f"axe {violation['impact']} {violation['id']}: {len(violation['nodes'])} times ({where})"


def _charts(page: Any) -> Iterator[str]:
    """Each chart has something drawn, and answers to the mouse in its middle and to an arrow key."""
    for place, canvas in enumerate(page.query_selector_all(".chart canvas")):
        name = (canvas.get_attribute("aria-label") or "")[:40]
        canvas.scroll_into_view_if_needed()
        drawn = canvas.evaluate("c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(value => value)")
        if not name or not drawn:
            yield f"chart {place} ({name}) is empty or has no words"
        spot = canvas.evaluate("c => { const k = Chart.getChart(c), all = k.getSortedVisibleDatasetMetas().at(-1).data, "
                               "p = all[Math.floor(all.length / 2)].getCenterPoint(); return [p.x, p.y]; }")
        canvas.hover(position={"x": spot[0], "y": spot[1]})
        page.wait_for_timeout(40)
        if not canvas.evaluate("c => Chart.getChart(c).tooltip.opacity && Chart.getChart(c).tooltip.body.length"):
            yield f"chart {place} ({name}) does not answer to the mouse"
        page.evaluate("document.getElementById('live').textContent = ''")
        canvas.focus()
        page.keyboard.press("ArrowRight")
        if not page.text_content("#live"):
            yield f"chart {place} ({name}) does not answer to the keyboard"
        page.keyboard.press("Escape")


def _tables(page: Any) -> Iterator[str]:
    """The table of clients sorts by its last column, filters by the first client's name, and chooses that client."""
    table = page.query_selector("table.clients")
    if not table:
        return
    column = page.evaluate("document.querySelector('table.clients').tHead.rows[0].cells.length - 2")  # served

    def column_of(place: int) -> list[str]:
        return page.evaluate("at => [...document.querySelectorAll('table.clients tbody tr')].filter(row => !row.hidden)"
                             ".map(row => row.cells[at].textContent)", place)

    for direction in (1, -1):
        table.query_selector(f"thead th:nth-child({column + 1}) button").click()
        values = [float(text.split("\N{NO-BREAK SPACE}")[0]) for text in column_of(column) if text != "–"]
        if values != sorted(values, reverse=direction < 0):
            yield f"the table of clients does not sort {'up' if direction > 0 else 'down'}"
    first = column_of(0)[0]
    page.fill(".tools input", first)
    if first not in column_of(0) or len(column_of(0)) != len([name for name in column_of(0) if first.lower() in name.lower()]):
        yield f"the filter shows {column_of(0)} for {first}"
    table.query_selector("tbody tr:not([hidden]) button").click()
    if page.evaluate("[...picked]") != column_of(0)[:1] or not table.query_selector("tr.picked"):
        yield "a client that is clicked is not chosen"
    page.fill(".tools input", "")


def _without_script(page: Any, report: Path) -> Iterator[str]:
    page.goto(report.absolute().as_uri())
    text = page.inner_text("main")
    if "bottom 20" not in text and "No client was scored" not in text:
        yield "no figures of the tail"
    if page.locator(".chart canvas:visible").count():
        yield "empty charts are shown"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("report", type=Path)
    arguments.add_argument("--shots", type=Path, help="folder for a screenshot of every view")
    asked = arguments.parse_args()
    if lack := missing():
        print(f"SKIPPED, nothing was checked: {lack}")
        return 0
    if asked.shots:
        asked.shots.mkdir(parents=True, exist_ok=True)
    found = list(faults(asked.report, asked.shots))
    print("\n".join(found) or f"no fault in {len(VIEWS)} widths, light and dark, and without script")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
