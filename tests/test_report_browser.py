"""report.html in a real browser: no error, no request, nothing too wide, nothing that axe-core calls serious, charts that answer.

Skipped where there is no Chromium or no Playwright. Both widths and screenshots: benchmarks/report/browser.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report.browser import faults, missing
from benchmarks.report.size import large_run
from server_app.html import page

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

BROKEN = """<!doctype html><html lang=en><head><meta charset=utf-8><title>x</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; img-src *"></head>
<body><main><div id=live></div><p>nothing</p><img src="http://127.0.0.1:9/a.png" width=5000>
<script>console.error("loud"); document.querySelector("p").textContent = "x".repeat(999)</script>
</main></body></html>"""


def test_every_part_of_a_report_is_without_fault_on_a_phone(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text(page(large_run(clients=6, rounds=10)), encoding="utf-8")
    assert list(faults(report, views=("phone",))) == []


def test_faults_are_found(tmp_path: Path) -> None:
    report = tmp_path / "broken.html"
    report.write_text(BROKEN, encoding="utf-8")
    found = "\n".join(faults(report, views=("phone",)))
    for expected in ("pixels of content in 390", "axe critical image-alt", "console: loud", "request: http://127.0.0.1:9/a.png",
                     "without script: no figures of the tail"):
        assert expected in found
