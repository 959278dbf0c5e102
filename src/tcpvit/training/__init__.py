"""Training: recipes, the loop, distillation, checkpoints that survive a kill, metrics (paper, Section 5).

>>> from tcpvit.training import load_recipe, train
>>> recipe = load_recipe("demo", ["schedule.epochs=3"])
>>> result = train(recipe, "runs/mine")  # doctest: +SKIP
>>> result.test["top1"]  # doctest: +SKIP
"""

from tcpvit.training.distill import distill
from tcpvit.training.evaluation import evaluate
from tcpvit.training.metrics import ClassificationMetrics, SegmentationMetrics
from tcpvit.training.recipe import Recipe, list_recipes, load_recipe
from tcpvit.training.run import Result, resume, train
from tcpvit.training.tasks import Classification, Segmentation
from tcpvit.training.trainer import NonFiniteLoss

__all__ = [
    "Classification",
    "ClassificationMetrics",
    "NonFiniteLoss",
    "Recipe",
    "Result",
    "Segmentation",
    "SegmentationMetrics",
    "distill",
    "evaluate",
    "list_recipes",
    "load_recipe",
    "resume",
    "train",
]
