"""stub"""

import torch

aten = torch.ops.aten
REWRITTEN = frozenset({aten._linalg_solve_ex.default, aten._linalg_det.default, aten._linalg_slogdet.default})
