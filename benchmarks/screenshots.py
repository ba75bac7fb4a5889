"""Screenshots of a comparison's page for the documents, at both widths, light and dark (needs chromium).

python benchmarks/screenshots.py REPORT_DIRECTORY docs/images
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "lib"))

from chromium import browser, find_chromium

SHOTS = (  # name, width, height, scheme, the section it starts with
    ("report-1280-light", 1280, 1000, "light", "body"),
    ("report-1280-dark", 1280, 1000, "dark", "#scaling"),
    ("report-timeline", 1280, 560, "light", "#timelines"),
    ("report-390-light", 390, 844, "light", "body"),
    ("report-390-dark", 390, 844, "dark", "#epoch"),
)


def main() -> None:
    report, images = Path(sys.argv[1]) / "report.html", Path(sys.argv[2])
    program = find_chromium()
    if program is None:
        raise SystemExit("error: no chromium here (apt-get install chromium)")
    images.mkdir(parents=True, exist_ok=True)
    with browser(program) as page:
        page.open(report)
        for name, width, height, scheme, section in SHOTS:
            page.look(width, height, scheme)
            page.evaluate(f"document.querySelector('{section}').scrollIntoView({{behavior: 'instant'}})")
            page.settle()
            page.screenshot(images / f"{name}.png")
            _shrink(images / f"{name}.png")
            print(f"{name}.png: {(images / f'{name}.png').stat().st_size / 1000:.0f} kB")


def _shrink(path: Path) -> None:
    """A page has few colours: 128 of them are enough for a picture in a document."""
    from PIL import Image

    with Image.open(path) as image:
        small = image.convert("RGB").quantize(128)
    small.save(path, optimize=True)


if __name__ == "__main__":
    main()
