"""One file per method, one small interface (`base.Method`)."""

from mlnt.methods.base import Method, Rates
from mlnt.methods.cross_entropy import CrossEntropy
from mlnt.methods.mlnt import MLNT

__all__ = ["MLNT", "CrossEntropy", "Method", "Rates"]
