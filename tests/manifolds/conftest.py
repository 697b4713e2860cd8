"""Makes `lie_reference` importable, whichever way pytest imports test files."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
