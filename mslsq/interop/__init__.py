"""Beyond PyTorch's own calls: programs for `torch.export`."""

from mslsq.front.exporting import ExportError
from mslsq.interop.exporting import export

__all__ = ["ExportError", "export"]
