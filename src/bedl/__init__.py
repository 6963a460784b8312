"""bedl: neural networks with calibrated uncertainty in one forward pass.

Names are imported when they are first used: reading a table or running an exported model needs no PyTorch. They are
listed in `__init__.pyi`.
"""

from bedl._utils.imports import lazy_names

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_names(__name__)
