"""Draws the charts of docs/images from the figures of the documentation.

    ensemble pictures

Run it after a figure of a drawn table, or a file of docs/benchmarks, has changed; a test fails until it is done.
"""

from __future__ import annotations

import argparse

from scripts.lab.pictures.figures import DOCS, charts

FOLDER = DOCS / "images"


def main() -> None:
    """Parse the command line and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    for name, chart in charts().items():
        (FOLDER / f"{name}.svg").write_text(chart.svg(), encoding="utf-8")
    print(f"drew {', '.join(charts())} in {FOLDER}")


if __name__ == "__main__":
    main()
