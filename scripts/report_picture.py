"""Make the picture of a report for the documentation: the top of a page, light and dark side by side.

    python scripts/report_picture.py [RUN] [docs/images/report.png]

Without RUN the first run of docs/getting_started.md is trained for it. Needs Chromium with its chromedriver, and
selenium.
"""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from covey.report.page import write_report

ROOT = Path(__file__).resolve().parents[1]
WIDTH, HEIGHT = 1240, 1180


def main(run: Path, target: Path) -> None:
    """Write the report, take a screenshot in both themes, and combine the two along the diagonal."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from browser import browser, open_page

    page = write_report(run)
    shots = []
    for dark in (False, True):
        with browser(WIDTH, HEIGHT, dark=dark) as driver:
            open_page(driver, page)
            shots.append(Image.open(io.BytesIO(base64.b64decode(driver.get_screenshot_as_base64()))).convert("RGB"))
    light, dark_one = shots
    mask = Image.new("1", light.size, 0)
    width, height = light.size
    for row in range(height):
        edge = int(width * (0.68 - 0.36 * row / height))
        mask.paste(1, (edge, row, width, row + 1))
    light.paste(dark_one, (0, 0), mask)
    target.parent.mkdir(parents=True, exist_ok=True)
    light.quantize(128).save(target, optimize=True)
    print(target)


if __name__ == "__main__":
    picture = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs" / "images" / "report.png"
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), picture)
    else:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "covey.cli.main", "train", "run_name=first"]
            subprocess.run(command, cwd=folder, check=True)
            main(Path(folder, "out", "first"), picture.absolute())
