"""Changes of appearance that no gain and bias undo: inverted contrast, other curves, gamma, other bands, shadows, blur.

Each takes values in [0, 1] (or an image's colour bands) to values in [0, 1]. `CHANGES` are the kinds a pair is drawn
from; on top of its kind a pair may get a shadow and a blur.
"""

from collections.abc import Callable

import numpy as np
import scipy.ndimage
from jaxtyping import Float
from scipy.interpolate import PchipInterpolator

Image = Float[np.ndarray, "height width"]
Bands = Float[np.ndarray, "height width bands"]


def stretched(image: Image) -> Image:
    """Values in [0, 1], the lowest and highest 1 % cut off."""
    low, high = np.percentile(image, (1, 99))
    return np.clip((image - low) / max(high - low, 1e-6), 0, 1)


def inverted(image: Image, random: np.random.Generator) -> Image:
    """The negative, with a mild gamma."""
    return (1 - image) ** np.exp(random.uniform(-0.5, 0.5))


def other_curve(image: Image, random: np.random.Generator) -> Image:
    """Values through a curve that goes up and down (another sensor, a false-colour table): the brighter of two
    neighbours may become the darker one."""
    knots = np.linspace(0, 1, 5)
    while True:
        heights = random.uniform(0, 1, len(knots))
        turns = np.abs(np.diff(np.sign(np.diff(heights)))).sum() / 2
        if turns >= 1 and np.abs(np.diff(heights)).min() > 0.2:
            return np.clip(PchipInterpolator(knots, heights)(image), 0, 1)


def strong_gamma(image: Image, random: np.random.Generator) -> Image:
    """A power of 3 to 4.5 or one over that, every second one inverted as a film would be."""
    power = np.exp(random.choice((-1, 1)) * random.uniform(1.1, 1.5))
    return 1 - image**power if random.uniform() < 0.5 else image**power


def unchanged(image: Image, random: np.random.Generator) -> Image:
    return image


def other_band(bands: Bands, random: np.random.Generator) -> tuple[Image, Image]:
    """Two images of different bands: the hue's strongest contrast against its opposite; of grey images, a band pass
    against the image."""
    if bands.shape[-1] == 1:
        image = bands[..., 0]
        return image, stretched(np.abs(image - scipy.ndimage.gaussian_filter(image, 3.0)) ** 0.5)
    one, two = random.choice(bands.shape[-1], 2, replace=False)
    return bands[..., one], stretched(bands[..., two] - random.uniform(0.3, 0.7) * bands[..., one])


def shadowed(image: Image, random: np.random.Generator) -> Image:
    """A half-plane and a disc darkened to 30-60 %, with soft edges."""
    height, width = image.shape
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    angle, soft = random.uniform(0, 2 * np.pi), random.uniform(40, 120)
    edge = (x - random.uniform(0.3, 0.7)) * np.cos(angle) + (y - random.uniform(0.3, 0.7)) * np.sin(angle)
    disc = np.hypot(x - random.uniform(0, 1), y - random.uniform(0, 1)) - random.uniform(0.15, 0.35)
    dark = [1 - random.uniform(0.4, 0.7) / (1 + np.exp(np.clip(soft * distance, -50, 50))) for distance in (edge, disc)]
    return image * dark[0] * dark[1]


def blurred(image: Image, random: np.random.Generator) -> Image:
    return scipy.ndimage.gaussian_filter(image, random.uniform(0.8, 1.8), mode="mirror")


CURVES: dict[str, Callable[[Image, np.random.Generator], Image]] = {
    "inverted": inverted,
    "curve": other_curve,
    "gamma": strong_gamma,
    "shadow": unchanged,  # the shadow itself comes on top, always
}
CHANGES = (*CURVES, "band")
"""What a pair may be: its curve, its bands, or its shadows."""
