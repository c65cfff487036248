"""Draws docs/images: charts from the figures of the documentation, and diagrams.

    ensemble pictures

Run it after a figure of a drawn table, or a file of docs/benchmarks, has changed; a test fails until it is done.
"""

from __future__ import annotations

from lab.pictures.chart import Chart, Diagram
from lab.pictures.diagrams import diagrams
from lab.pictures.figures import DOCS, charts
from scripts.flags import described

FOLDER = DOCS / "images"


def main() -> None:
    """Parse the command line and draw."""
    parser = described(__doc__)
    parser.parse_args()
    pictures: dict[str, Chart | Diagram] = {**charts(), **diagrams()}
    for name, picture in pictures.items():
        (FOLDER / f"{name}.svg").write_text(picture.svg(), encoding="utf-8")
    print(f"drew {', '.join(pictures)} in {FOLDER}")


if __name__ == "__main__":
    main()
