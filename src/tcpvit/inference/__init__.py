"""Inference: a trained model with its preprocessing, prediction of images and folders, masks, explanation, export."""

from tcpvit.inference.explain import Explanation, explain
from tcpvit.inference.export import Exported, export_model
from tcpvit.inference.loading import LoadedModel, load_model
from tcpvit.inference.masks import segment_files
from tcpvit.inference.predict import predict_files

__all__ = [
    "Explanation",
    "Exported",
    "LoadedModel",
    "explain",
    "export_model",
    "load_model",
    "predict_files",
    "segment_files",
]
