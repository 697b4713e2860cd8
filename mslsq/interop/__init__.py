"""Beyond PyTorch's own calls: programs for `torch.export`, functions as SciPy has them (`scipy`), what was written for
Theseus (`theseus`)."""

from mslsq.front.exporting import ExportError
from mslsq.interop import scipy, theseus
from mslsq.interop.exporting import export

__all__ = ["ExportError", "export", "scipy", "theseus"]
