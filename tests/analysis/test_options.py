"""Options from the command line: read by the type of the field, and refused in one sentence."""

from __future__ import annotations

import pytest

from tcpvit.analysis.options import parse_options
from tcpvit.models import ViTConfig
from tcpvit.models.segmenter import SegmenterConfig


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("depth=8", 8),
        ("mlp_ratio=2", 2.0),
        ("qkv_bias=False", False),
        ("qkv_bias=true", True),
        ("tube=none", None),
        ("tube=6", 6),
        ("patch_embed=none", "none"),
        ("img_size=64", 64),
        ("img_size=64x32", (64, 32)),
        ("coupling=low_rank:4+shuffle", ("low_rank:4", "shuffle")),
        ("coupling=none", ()),
    ],
)
def test_a_value_has_the_type_of_its_field(text, value):
    (read,) = parse_options([text], ViTConfig).values()
    assert read == value
    assert type(read) is type(value)
    ViTConfig.from_dict({"kind": "tcp", "img_size": 64, "patch_size": 4, "embed_dim": 48, text.split("=")[0]: read})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("atention=joint", "'atention' is no option of ViTConfig; did you mean 'attention'?"),
        ("depth", "an option is written KEY=VALUE, got 'depth'"),
        ("depth=eight", "depth is of type int, got 'eight'"),
        ("qkv_bias=1", "qkv_bias is of type bool, got '1'"),
        ("img_size=big", "img_size is of type int or tuple, got 'big'"),
        ("tube=", "tube is of type int, got ''"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(text, said):
    with pytest.raises(ValueError, match="^" + said.replace("?", r"\?")):
        parse_options([text], ViTConfig)


def test_a_group_of_options_has_no_value_of_its_own():
    with pytest.raises(ValueError, match=r"^backbone is a group of options, as backbone\.kind, got backbone=3$"):
        parse_options(["backbone=3"], SegmenterConfig)
