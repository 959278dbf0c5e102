"""Models: presets by name, Std and TCP from one skeleton, saved as safetensors."""

from tcpvit.models.config import ViTConfig
from tcpvit.models.pretrained import from_pretrained, save_pretrained
from tcpvit.models.registry import create_model, list_models, model_config, register_model, twin_name
from tcpvit.models.twin import dense_twin
from tcpvit.models.vit import VisionTransformer

__all__ = [
    "ViTConfig",
    "VisionTransformer",
    "create_model",
    "dense_twin",
    "from_pretrained",
    "list_models",
    "model_config",
    "register_model",
    "save_pretrained",
    "twin_name",
]
