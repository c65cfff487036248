"""The layout of a model's image input: which dimension has the colours."""

from typing import Literal

import openvino as ov

from deployments.repository.errors import ModelError

Layout = Literal["NCHW", "NHWC"]
LAYOUTS: tuple[Layout, ...] = ("NCHW", "NHWC")

# Channels of an image. A dimension of so few elements is taken for colours, never for the side of an image.
CHANNELS = 3


def layout_of(shape: ov.PartialShape, given: Layout | None = None) -> Layout:
    """Return the layout of an image input: the given one, or the layout that the shape shows.

    Raises:
        ModelError: no layout fits the shape, not the given one, or both do and none is given.
    """
    if shape.rank.is_dynamic:
        if given is None:
            raise ModelError("the model's file does not have the shape of its input; give --layout and --size")
        return given
    if shape.rank.get_length() != 4:
        raise ModelError(f"the model takes {shape}; a member takes images, [N,3,H,W] or [N,H,W,3]")
    fitting = [layout for layout in LAYOUTS if _fits(shape, layout)]
    if not fitting:
        raise ModelError(
            f"the model takes {shape}, which is neither [N,3,H,W] nor [N,H,W,3] with sides of more than {CHANNELS} "
            "pixels; a member takes images of three channels"
        )
    if given in fitting:
        return given
    if given is not None:
        raise ModelError(f"the model takes {shape}, which is no {given}; it fits --layout {fitting[0]}")
    if len(fitting) > 1:
        raise ModelError(
            f"the model takes {shape}, which can be read as NCHW (images {_sides(shape, 'NCHW')}) and as NHWC (images "
            f"{_sides(shape, 'NHWC')}); give --layout"
        )
    return fitting[0]


def _fits(shape: ov.PartialShape, layout: Layout) -> bool:
    sides = [shape[layout.index(axis)] for axis in "HW"]
    colours = shape[layout.index("C")]
    return (colours.is_dynamic or colours.get_length() == CHANNELS) and all(
        side.is_dynamic or side.get_length() > CHANNELS for side in sides
    )


def _sides(shape: ov.PartialShape, layout: Layout) -> str:
    height, width = (shape[layout.index(axis)] for axis in "HW")
    return f"{height} pixels high and {width} wide"
