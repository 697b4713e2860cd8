"""Other packages that register a pair by a similarity: SIFT with MAGSAC (OpenCV), mutual information (SimpleITK) and
TurboReg (pystackreg), each as its documentation recommends it.

All take (reference, moving), NaN where there are no data, and return the 3 x 3 matrix from reference pixels to map
pixels; NaN where they say that they have found none. Holes are filled by the mean where a method has no masks.
"""

import importlib.util
from typing import Any

import cv2
import numpy as np

INLIERS = 8
"""Matches that a warp of SIFT must explain to be one."""

Raster = np.ndarray
NOTHING = np.full((3, 3), np.nan)


def available(module: str) -> bool:
    """Is this package installed?"""
    return importlib.util.find_spec(module) is not None


def filled(raster: Raster) -> Raster:
    """Standardised, zero where nothing is known."""
    known = np.isfinite(raster)
    return np.where(known, (raster - raster[known].mean()) / raster[known].std(), 0.0)


detector: Any = getattr(cv2, "SIFT_create")  # noqa: B009 (the stubs of OpenCV 5 do not have it)


def sift_and_magsac(reference: Raster, moving: Raster) -> Raster:
    """SIFT, the ratio test at 0.8, and an affine warp by `USAC_MAGSAC` (Barath et al., 2020): it has no similarity."""
    found = []
    for raster in (reference, moving):
        known = np.isfinite(raster)
        low, high = np.percentile(raster[known], (0.5, 99.5))
        image = np.clip(255 * (np.where(known, raster, low) - low) / (high - low), 0, 255).astype(np.uint8)
        found.append(detector().detectAndCompute(image, known.astype(np.uint8)))
    (points, one), (others, other) = found
    if one is None or other is None or min(len(one), len(other)) < INLIERS:
        return NOTHING
    matches = cv2.BFMatcher().knnMatch(one, other, k=2)
    good = [pair[0] for pair in matches if len(pair) == 2 and pair[0].distance < 0.8 * pair[1].distance]
    if len(good) < INLIERS:
        return NOTHING
    source = np.array([points[match.queryIdx].pt for match in good])
    target = np.array([others[match.trainIdx].pt for match in good])
    matrix, inliers = cv2.estimateAffine2D(source, target, method=cv2.USAC_MAGSAC, ransacReprojThreshold=1.0)
    if matrix is None or inliers.sum() < INLIERS:
        return NOTHING
    return np.vstack([matrix, [0, 0, 1]])


def mutual_information(reference: Raster, moving: Raster) -> Raster:
    """Mattes' mutual information over four levels, from the identity about the centre, with masks."""
    import SimpleITK as sitk

    images = [sitk.GetImageFromArray(filled(raster).astype(np.float32)) for raster in (reference, moving)]
    masks = [sitk.GetImageFromArray(np.isfinite(raster).astype(np.uint8)) for raster in (reference, moving)]
    method = sitk.ImageRegistrationMethod()
    method.SetMetricAsMattesMutualInformation(32)
    method.SetMetricSamplingStrategy(method.NONE)
    method.SetMetricFixedMask(masks[0])
    method.SetMetricMovingMask(masks[1])
    method.SetInterpolator(sitk.sitkLinear)
    method.SetOptimizerAsRegularStepGradientDescent(1.0, 1e-4, 200, 0.6)
    method.SetOptimizerScalesFromPhysicalShift()
    method.SetShrinkFactorsPerLevel([8, 4, 2, 1])
    method.SetSmoothingSigmasPerLevel([4, 2, 1, 0.5])
    start = sitk.Similarity2DTransform()
    start.SetCenter([(size - 1) / 2 for size in images[0].GetSize()])
    method.SetInitialTransform(start, inPlace=True)
    try:
        method.Execute(*images)
    except RuntimeError:  # no samples are left
        return NOTHING
    centre, linear = np.array(start.GetCenter()), np.array(start.GetMatrix()).reshape(2, 2)
    matrix = np.eye(3)
    matrix[:2, :2], matrix[:2, 2] = linear, centre + np.array(start.GetTranslation()) - linear @ centre
    return matrix


def turboreg(reference: Raster, moving: Raster) -> Raster:
    """Thévenaz, Ruttimann and Unser (1998): cubic splines from coarse to fine, least squares."""
    from pystackreg import StackReg

    return np.asarray(StackReg(StackReg.SCALED_ROTATION).register(filled(reference), filled(moving)))
