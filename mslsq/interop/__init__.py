"""Beyond PyTorch's own calls: programs for `torch.export`, and functions as SciPy has them (`scipy`)."""

from mslsq.front.exporting import ExportError
from mslsq.interop import scipy
from mslsq.interop.exporting import export

__all__ = ["ExportError", "export", "scipy"]
