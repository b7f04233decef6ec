"""Colours of values: scales whose steps look equally large, and pixels of them.

A scale is a curve through OKLCH (lightness, chroma, hue), in which equal steps of lightness look
equal, brought to sRGB. The last rows of a palette are for pixels without a value.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

NUM_STEPS = 251
"""Rows of a palette that stand for values. The middle one is that of no difference."""
APPEARED, VANISHED, NOTHING = 253, 254, 255
"""Rows for a value that is only in the later one, only in the earlier one, and in neither."""

_APPEARED_RGBA = (34, 160, 90, 255)
_VANISHED_RGBA = (190, 60, 170, 255)

# Lightness, chroma and hue at equal distances along the scale.
_CURVES = {
    "ice": (
        (0.20, 0.07, 285),
        (0.42, 0.13, 262),
        (0.62, 0.12, 225),
        (0.8, 0.11, 175),
        (0.97, 0.09, 110),
    ),
    "ember": (
        (0.18, 0.06, 320),
        (0.4, 0.15, 350),
        (0.6, 0.19, 25),
        (0.79, 0.16, 65),
        (0.97, 0.09, 100),
    ),
    "grey": ((0.15, 0.0, 0), (0.98, 0.0, 0)),
    "difference": (
        (0.4, 0.16, 262),
        (0.68, 0.12, 245),
        (0.96, 0.0, 0),
        (0.68, 0.15, 40),
        (0.45, 0.17, 28),
    ),
}
SCALES = tuple(name for name in _CURVES if name != "difference")


@cache
def palette(scale: str) -> NDArray[np.uint8]:
    """256 colours with opacity: the scale, and the rows for pixels without a value."""
    curve = np.array(_CURVES[scale], np.float64)
    hue = np.deg2rad(curve[:, 2])
    # Through a and b instead of the hue: a straight line there never leaves the colours between.
    corners = (curve[:, 0], curve[:, 1] * np.cos(hue), curve[:, 1] * np.sin(hue))
    at = np.linspace(0, len(curve) - 1, NUM_STEPS)
    lab = np.stack([np.interp(at, np.arange(len(curve)), each) for each in corners])
    made = np.zeros((256, 4), np.uint8)
    made[:NUM_STEPS, :3] = _srgb(lab)
    made[:NUM_STEPS, 3] = 255
    made[APPEARED], made[VANISHED] = _APPEARED_RGBA, _VANISHED_RGBA
    made.flags.writeable = False
    return made


def _srgb(lab: NDArray[np.float64]) -> NDArray[np.uint8]:
    """OKLab to sRGB."""
    to_cones = np.array(
        [
            [1, 0.3963377774, 0.2158037573],
            [1, -0.1055613458, -0.0638541728],
            [1, -0.0894841775, -1.2914855480],
        ]
    )
    to_linear = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    linear = np.clip(to_linear @ (to_cones @ lab) ** 3, 0, 1)
    curved = np.where(linear > 0.0031308, 1.055 * linear ** (1 / 2.4) - 0.055, 12.92 * linear)
    made: NDArray[np.uint8] = np.rint(255 * curved).astype(np.uint8).T
    return made


def pixels(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.uint8]:
    """Rows of a palette for values between two limits; those beyond get the colour at the end."""
    is_value = ~np.isnan(values)
    # Halves, because the distance of two large limits may be infinite.
    span = high / 2 - low / 2 or 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        part = (np.where(is_value, values, low) / 2 - low / 2) / span
    steps = np.minimum(np.clip(np.nan_to_num(part), 0, 1) * NUM_STEPS, NUM_STEPS - 1)
    return np.where(is_value, steps.astype(np.uint8), np.uint8(NOTHING))
