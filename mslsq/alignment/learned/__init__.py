"""Alignment by learned features: a feature pyramid in front of a least-squares layer, trained through the solve."""

from mslsq.alignment.learned.layer import FeatureDifference, LearnedAligner
from mslsq.alignment.learned.loss import corner_errors, training_loss
from mslsq.alignment.learned.network import FeatureLevel, FeaturePyramid
from mslsq.alignment.learned.pairs import TEST, TRAIN, PairBatch, PairSource

__all__ = [
    "TEST",
    "TRAIN",
    "FeatureDifference",
    "FeatureLevel",
    "FeaturePyramid",
    "LearnedAligner",
    "PairBatch",
    "PairSource",
    "corner_errors",
    "training_loss",
]
