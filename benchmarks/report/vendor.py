"""Write server_app/vendored.json: the charting library that report.html embeds, as it was published.

    npm pack chart.js@4.6.1 chartjs-chart-matrix@3.1.0
    python benchmarks/report/vendor.py chart.js-4.6.1.tgz chartjs-chart-matrix-3.1.0.tgz

JSON, because Flower's bundles hold no ``.js`` files. Each script lies there unchanged, beside its licence and its SHA-256, which
tests/test_report.py holds it to. To update, pack newer versions and run tests/test_report_browser.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tarfile
from pathlib import Path

TARGET = Path(__file__).parents[2] / "server_app" / "vendored.json"
SCRIPTS = {"chart.js": "dist/chart.umd.min.js", "chartjs-chart-matrix": "dist/chartjs-chart-matrix.min.js"}


def entry(archive: Path) -> dict[str, str]:
    """Name, version, licence, SHA-256 and text of the one script that we take from an npm package."""
    with tarfile.open(archive) as packed:
        texts = {Path(member.name).relative_to("package").as_posix(): packed.extractfile(member) for member in packed if member.isfile()}
        facts = json.loads(texts["package.json"].read())  # type: ignore[union-attr]
        script = texts[SCRIPTS[facts["name"]]].read()  # type: ignore[union-attr]
        licence = next(file for name, file in texts.items() if name.startswith("LICENSE")).read()  # type: ignore[union-attr]
    return {"name": facts["name"], "version": facts["version"], "license": facts["license"], "license-text": licence.decode(),
            "file": SCRIPTS[facts["name"]], "sha256": hashlib.sha256(script).hexdigest(), "script": script.decode()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("archives", nargs="+", type=Path)
    entries = [entry(path) for path in arguments.parse_args().archives]
    TARGET.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(", ".join(f"{e['name']} {e['version']} ({e['license']}, {len(e['script'])} bytes)" for e in entries))


if __name__ == "__main__":
    main()
