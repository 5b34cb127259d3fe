"""One file per method, one small interface (`base.Method`)."""

from mlnt.methods.base import Method, Rates
from mlnt.methods.cnn_crf import CNNCRF, Clean
from mlnt.methods.contrastive import Contrastive
from mlnt.methods.cross_entropy import CrossEntropy
from mlnt.methods.forward import Forward, estimate_transition, true_transition
from mlnt.methods.joint_optimization import JointOptimization, SoftCrossEntropy
from mlnt.methods.mean_teacher import Iterative, MeanTeacher
from mlnt.methods.mlnt import MLNT
from mlnt.methods.single_stage import SingleStage, single_stage

__all__ = [
    "CNNCRF",
    "MLNT",
    "Clean",
    "Contrastive",
    "CrossEntropy",
    "Forward",
    "Iterative",
    "JointOptimization",
    "MeanTeacher",
    "Method",
    "Rates",
    "SingleStage",
    "SoftCrossEntropy",
    "estimate_transition",
    "single_stage",
    "true_transition",
]
