"""The inputs of members: the transformer makes each once per image, for all members that want the same."""

from typing import Annotated, Literal

import msgspec

Resize = Literal["crop", "stretch", "letterbox"]
Interpolation = Literal["area", "linear", "cubic", "nearest", "bilinear", "bicubic", "lanczos"]
Size = tuple[int, int]
CropRatio = Annotated[float, msgspec.Meta(gt=0, le=1)]
Level = Annotated[int, msgspec.Meta(ge=0, le=255)]
Color = tuple[Level, Level, Level]


class Preprocessing(msgspec.Struct, frozen=True):
    """How pixels are made of an image.

    Attributes:
        size: height and width, pixels.
        crop_ratio: the share of the shorter side that the centre crop keeps; 0.875 is ImageNet's 224 of 256.
        resize: `crop` keeps the aspect and cuts the centre out; `stretch` keeps all and not the aspect; `letterbox`
            keeps both and fills the rest with `border`.
        interpolation: `area` averages where the image shrinks and is linear where it grows; `bilinear`, `bicubic` and
            `lanczos` are Pillow's filters, which torchvision, timm and transformers resize by before they crop.
        border: the colour beside a letterboxed image, blue, green and red from 0 to 255.
    """

    size: Size
    crop_ratio: CropRatio = 1.0
    resize: Resize = "crop"
    interpolation: Interpolation = "area"
    border: Color = (0, 0, 0)

    @property
    def key(self) -> str:
        """The key of its pixels among others, which is the same for the same preprocessing."""
        height, width = self.size
        text = f"{height}x{width} {self.resize} {self.crop_ratio:g} {self.interpolation}"
        return text if self.resize != "letterbox" else f"{text} {self.border}"


class AsSent(msgspec.Struct, frozen=True):
    """The image as its client sent it, for a member that decodes it itself."""

    @property
    def key(self) -> str:
        """Its key among the inputs."""
        return "as sent"


MemberInput = Preprocessing | AsSent
