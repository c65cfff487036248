"""A dataset to draw on."""

from __future__ import annotations

import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from packages.models.tests.tiny import SIZE, Draw
from tests.conftest import repository  # noqa: F401


@pytest.fixture
def draw(tmp_path: Path) -> Draw:
    """Draws a zip file of noise: so many PNGs a class."""

    def draw(counts: dict[str, int], size: tuple[int, int] = SIZE, name: str = "drawn.zip") -> Path:
        noise = np.random.default_rng(0)
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for label, count in counts.items():
                for number in range(count):
                    pixels = noise.integers(0, 256, (*size, 3), np.uint8)
                    archive.writestr(f"{label}/{number}.png", cv2.imencode(".png", pixels)[1].tobytes())
        return tmp_path / name

    return draw
