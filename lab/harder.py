"""Makes labelled images harder to recognize: less contrast, blur and noise, drawn anew for each image.

    ensemble harder images.zip harder.zip --contrast 0.7 --blur 0.6 --noise 12

For trying what a cascade's audit finds on images that its thresholds were not chosen for. The same seed draws the same.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from deployments.contract.payload import Pixels
from ensemble_models.dataset import Dataset
from scripts.errors import ScriptError, check_writable, errors_in_one_line
from scripts.flags import described

QUALITY = 75
GREY = 128.0


def harder(pixels: Pixels, contrast: float, blur: float, noise: float, draw: np.random.Generator) -> Pixels:
    """Make an image, uint8 [height,width,3], harder.

    Args:
        pixels: the image.
        contrast: of the harder one, at least; 1 leaves it as it is.
        blur: the largest standard deviation, pixels.
        noise: the largest standard deviation, of 255.
        draw: draws how much of each.
    """
    kept = 1 - (1 - contrast) * draw.random()
    result: NDArray[Any] = (pixels.astype(np.float32) - GREY) * kept + GREY
    if (sigma := blur * draw.random()) > 0:
        result = cv2.GaussianBlur(result, (0, 0), sigma)
    result = result + noise * draw.random() * draw.standard_normal(pixels.shape)
    made: Pixels = np.clip(np.rint(result), 0, 255).astype(np.uint8)
    return made


def convert(dataset: Dataset, target: Path, contrast: float, blur: float, noise: float, seed: int) -> None:
    """Write every image of a dataset, made harder, into a zip file.

    Raises:
        ScriptError: an image can't be decoded.
    """
    draw = np.random.default_rng(seed)
    with zipfile.ZipFile(target, "w") as archive:
        images = zip(dataset.names, dataset.read(), strict=True)
        for name, (encoded, _) in tqdm(images, "harder", len(dataset), unit="img", leave=False):
            pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
            if pixels is None:
                raise ScriptError(f"{dataset.path}: {name} can't be decoded")
            made = harder(pixels.astype(np.uint8), contrast, blur, noise, draw)
            _, jpeg = cv2.imencode(".jpg", made, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
            archive.writestr(str(Path(name).with_suffix(".jpg")), jpeg.tobytes())


def main() -> None:
    """Parse the command line and convert."""
    parser = described(__doc__)
    parser.add_argument("data", type=Path, help="<class>/*.jpg, a folder or a zip file")
    parser.add_argument("target", type=Path, help="the zip file to write")
    parser.add_argument("--contrast", type=float, default=0.7, help="at least, from 0 to 1; default: 0.7")
    parser.add_argument("--blur", type=float, default=0.6, metavar="PIXELS", help="at most; default: 0.6")
    parser.add_argument("--noise", type=float, default=12.0, metavar="LEVELS", help="at most, of 255; default: 12")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not 0 < args.contrast <= 1 or args.blur < 0 or args.noise < 0:
        parser.error("--contrast is above 0 and at most 1; --blur and --noise are 0 or more")
    check_writable(parser, args.target)
    with errors_in_one_line():
        convert(Dataset.open(args.data), args.target, args.contrast, args.blur, args.noise, args.seed)


if __name__ == "__main__":
    main()
