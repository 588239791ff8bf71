"""Profile PyTorch tests and fail them when they need more than they did.

Importing this package loads nothing else: not torch, not pytest, not numpy.
"""

__version__ = "0.1.0"
