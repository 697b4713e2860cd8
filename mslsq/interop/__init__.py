"""Beyond PyTorch's own calls: programs for `torch.export`, functions as SciPy has them (`scipy`), what was written for
Theseus (`theseus`), operators that PyTorch cannot look into (`operators`), kernels of Warp (`warp`)."""

from mslsq.front.exporting import ExportError
from mslsq.interop import operators, scipy, theseus, warp
from mslsq.interop.exporting import export

__all__ = ["ExportError", "export", "operators", "scipy", "theseus", "warp"]
