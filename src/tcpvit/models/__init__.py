"""Models: presets by name, Std and TCP from one skeleton, saved as safetensors."""

from tcpvit.models.config import ViTConfig
from tcpvit.models.decoder import Decoder, DecoderConfig
from tcpvit.models.pretrained import from_pretrained, save_pretrained
from tcpvit.models.registry import create_model, list_models, model_config, register_model, twin_name
from tcpvit.models.segmenter import EncoderDecoder, Segmenter, SegmenterConfig
from tcpvit.models.swin import SwinConfig, SwinTransformer
from tcpvit.models.twin import dense_twin
from tcpvit.models.vit import VisionTransformer
from tcpvit.models.zoo import list_pretrained

__all__ = [
    "Decoder",
    "DecoderConfig",
    "EncoderDecoder",
    "Segmenter",
    "SegmenterConfig",
    "SwinConfig",
    "SwinTransformer",
    "ViTConfig",
    "VisionTransformer",
    "create_model",
    "dense_twin",
    "from_pretrained",
    "list_models",
    "list_pretrained",
    "model_config",
    "register_model",
    "save_pretrained",
    "twin_name",
]
