"""The best recipe for alignment with OpenCV that we know: phase correlation, a pyramid of four levels, ECC on each.

Both maps pass a Gaussian of 1 px (what ECC itself does by default, 5 px wide, costs accuracy). Evangelidis and
Psarakis, "Parametric image alignment using enhanced correlation coefficient maximization" (2008). OpenCV has no
similarity: `sim2` is found as an affine warp.
"""

from typing import Any

import cv2
import numpy as np

MOTIONS = {
    "translation": cv2.MOTION_TRANSLATION,
    "se2": cv2.MOTION_EUCLIDEAN,
    "sim2": cv2.MOTION_AFFINE,
    "affine": cv2.MOTION_AFFINE,
    "homography": cv2.MOTION_HOMOGRAPHY,
}


def _pyramid(raster: np.ndarray, levels: int) -> list[np.ndarray]:
    """Blurred by 1 px, then blurred and halved again and again; pixel (0, 0) stays where it is."""
    out = [cv2.GaussianBlur(raster.astype(np.float32), (0, 0), 1.0)]
    while len(out) < levels:
        out.append(np.ascontiguousarray(cv2.GaussianBlur(out[-1], (0, 0), 1.0)[::2, ::2]))
    return out


def align(reference: np.ndarray, moving: np.ndarray, model: str, levels: int = 4) -> np.ndarray:
    """The 3 x 3 matrix from reference pixels to map pixels; NaN where ECC gives up."""
    references, movings = _pyramid(reference, levels), _pyramid(moving, levels)
    coarse = levels - 1
    scale = 2.0**coarse
    window = cv2.createHanningWindow(references[coarse].shape[::-1], cv2.CV_32F)
    (x, y), _ = cv2.phaseCorrelate(references[coarse], movings[coarse], window)
    warp = np.eye(3, dtype=np.float32)
    warp[:2, 2] = x * scale, y * scale
    motion = MOTIONS[model]
    no_mask: Any = None  # which the stubs of OpenCV do not know of
    for level in range(coarse, -1, -1):
        shrink = np.diag([2.0**-level, 2.0**-level, 1.0]).astype(np.float32)
        at_level = shrink @ warp @ np.linalg.inv(shrink)
        # the free motion on the coarsest level begins with the shift alone, as degrees of freedom grow in ours
        steps = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 50 if level else 100, 1e-5 if level else 1e-7)
        rows = 3 if motion == cv2.MOTION_HOMOGRAPHY else 2
        try:
            _, found = cv2.findTransformECC(
                references[level], movings[level], np.ascontiguousarray(at_level[:rows]), motion, steps, no_mask, 1
            )
        except cv2.error:
            return np.full((3, 3), np.nan)
        at_level[:rows] = found
        warp = np.linalg.inv(shrink) @ at_level @ shrink
    return warp / warp[2, 2]
