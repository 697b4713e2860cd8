"""Beyond PyTorch's own calls: programs for `torch.export`."""

from mslsq.interop.exporting import ExportError, export

__all__ = ["ExportError", "export"]
