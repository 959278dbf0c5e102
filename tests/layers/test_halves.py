"""Which blocks go through the fused halves, and that nobody can tell: hooks, dropout, other layers, compile, export."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import tcpvit
from tcpvit.layers import Block, TBlock, TubalLinear
from tcpvit.layers.coupling import Coupling
from tcpvit.layers.halves import attention_half, ffn_half
from tcpvit.layers.kernels import halves
from tcpvit.layers.kernels.build import is_built
from tcpvit.timing import using_threads

built = is_built("ffn_half") and is_built("attention_half")
pytestmark = pytest.mark.skipif(not built, reason="no compiler here: the kernels are not built")
CALLS = ("ffn_half", "attention_half")
GRID = (5, 13)


def taken(block, x):
    """Whether the attention half and the FFN half are taken."""
    return attention_half(block, x, GRID) is not None, ffn_half(block, x, GRID, type(block.mlp)) is not None


def t_block(**options):
    return TBlock(16, 4, 3, **options), torch.randn(3, 2, 65, 16)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (True, True)),
        ({"attention": "joint"}, (True, True)),
        ({"qkv_bias": False}, (True, True)),
        ({"drop": 0.1}, (False, False)),
        ({"attn_drop": 0.1}, (False, True)),
        ({"drop_path": 0.1}, (False, False)),
        ({"activation_domain": "spatial"}, (True, False)),
        ({"gated": True}, (True, False)),
        ({"coupling": Coupling(shared=True)}, (True, True)),
        ({"coupling": Coupling(shared=True), "attention": "joint"}, (True, True)),
        ({"coupling": Coupling(shuffle=True)}, (True, True)),
        ({"coupling": Coupling(norm=True)}, (True, True)),
        ({"coupling": Coupling(norm=True, shared=True)}, (True, True)),
        ({"coupling": Coupling(mix="rotation")}, (True, True)),
        ({"coupling": Coupling(mix="rotation", partial=0.5)}, (False, False)),
        ({"local": 3}, (True, True)),
        ({"local": 3, "coupling": Coupling(norm=True, shuffle=True)}, (True, True)),
        ({"attention_pool": 5}, (False, True)),  # of a grid of 5×13
        ({"coupling": Coupling(low_rank=2)}, (False, False)),
    ],
)
def test_which_blocks(options, expected):
    block, x = t_block(**options)
    assert taken(block, x) == expected
    if "drop" in str(options):
        assert taken(block.eval(), x) == (True, True)
    assert taken(block, x.double()) == (False, False)
    assert taken(block.to("meta"), x.to("meta")) == (False, False)


def test_wide_slices_only_where_every_thread_has_an_image():
    block, x = TBlock(96, 2, 3), torch.randn(3, 1, 65, 96)
    with using_threads(3):
        assert taken(block, x) == (True, True)
    with using_threads(4):
        assert taken(block, x) == (False, False)
        assert taken(block, x.repeat(1, 2, 1, 1)) == (True, True)
    with torch.autocast("cpu", torch.bfloat16):
        assert taken(block, x) == (False, False)
    assert taken(block.bfloat16(), x.bfloat16()) == (False, False)
    wider = halves.max_width() + 2
    assert taken(TBlock(wider, 2, 3), torch.randn(3, 4, 65, wider)) == (False, False)


@pytest.mark.parametrize(("vendor", "slow"), [("AuthenticAMD", True), ("GenuineIntel", False), (None, False)])
def test_where_the_products_of_torch_are_slow(vendor, slow, tmp_path, monkeypatch):
    file = tmp_path / "cpuinfo"
    if vendor:
        file.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
    monkeypatch.setattr(halves, "CPU_INFO", file)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert halves._is_mkl_slow.__wrapped__() == slow


@pytest.mark.parametrize("tube", [2, 5, 8, 32])
def test_mixed_slices_that_attend_together_equal_layer_by_layer(tube):
    coupling = Coupling.parse("shared+mix:rotation+norm")
    block = TBlock(8, 1, tube, attention="joint", coupling=coupling).double()
    x, grad = torch.randn(2, tube, 3, 10, 8, dtype=torch.float64)
    assert taken(block, x) == (True, True)

    def layer_by_layer(x):
        attended = x + block.attn(block.norm1(x))
        return attended + block.mlp(block.norm2(attended))

    inputs = [x.requires_grad_(), *block.parameters()]
    ours, theirs = block(x), layer_by_layer(x)
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
    for mine, other in zip(*(torch.autograd.grad(y, inputs, grad) for y in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-9, rtol=1e-9)


def test_dense_blocks():
    assert taken(Block(48, 4), torch.randn(2, 65, 48)) == (True, True)
    with using_threads(2):
        assert taken(Block(192, 3), torch.randn(2, 65, 192)) == (True, True)
        assert taken(Block(192, 3), torch.randn(1, 65, 192)) == (False, False)


def test_autocast_takes_them_where_weights_and_tokens_are_float32():
    block, x = t_block()
    with torch.autocast("cpu", torch.bfloat16):
        assert taken(block, x) == (True, True)
        assert taken(block, x.bfloat16()) == (False, False)
        assert block(x).dtype == torch.float32
        assert taken(Block(48, 4), torch.randn(2, 65, 48)) == (False, False)  # torch is faster there


def test_filters_need_the_grid_of_all_tokens():
    block, x = t_block(local=3)
    assert ffn_half(block, x, None, type(block.mlp)) is None
    assert ffn_half(block, x, (4, 4), type(block.mlp)) is None


def seen(block, x, name):
    """How often a hook on a layer is called."""
    calls = []
    handle = block.get_submodule(name).register_forward_hook(lambda *_: calls.append(1))
    y = block(x)
    handle.remove()
    return len(calls), y


@pytest.mark.parametrize("make", [t_block, lambda: (Block(48, 4), torch.randn(2, 65, 48))])
def test_hooks_on_any_layer_are_called(make):
    block, x = make()
    before = block(x)
    for name in ("norm1", "attn", "attn.qkv", "attn.proj", "attn.proj_drop", "norm2", "mlp", "mlp.fc1", "mlp.fc2"):
        calls, after = seen(block, x, name)
        assert calls == 1, name
        torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-5)


def test_hooks_on_all_modules_are_called():
    block, x = t_block()
    names = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: names.append(type(module).__name__))
    block(x)
    handle.remove()
    assert names.count("TLinear") == 4


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def test_layers_that_are_not_what_they_were():
    block, x = t_block()
    parametrize.register_parametrization(block.attn.proj, "weight_hat", Doubled())
    block.mlp.fc1.forward = lambda x_hat: x_hat.repeat(1, 1, 1, 4)
    assert taken(block, x) == (False, False)
    block, x = t_block()
    block.attn = nn.Identity()
    block.mlp.activation = torch.relu
    assert taken(block, x) == (False, False)


@pytest.mark.parametrize("name", ["fc1", "fc2"])
def test_dense_blocks_with_a_layer_of_slices(name):
    block = Block(48, num_heads=4)
    layer = getattr(block.mlp, name)
    setattr(block.mlp, name, TubalLinear(layer.in_features, layer.out_features, 3))
    x = torch.randn(2, 5, 48)
    assert taken(block, x) == (True, False)
    assert block(x).shape == x.shape


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attention": "joint"},
        {"local": 3},
        {"local": 5, "coupling": Coupling(shared=True)},
        {"coupling": Coupling(norm=True)},
        {"local": 3, "coupling": Coupling(shuffle=True, mix="rotation")},
        {"coupling": Coupling(shared=True), "attention": "joint", "qkv_bias": False},
        {"local": 3, "coupling": Coupling(norm=True, shared=True, mix="rotation"), "attention_pool": 2},
        {"local": 3, "coupling": Coupling(norm=True, shuffle=True), "attention_pool": 2},
        {"local": 3, "coupling": Coupling(norm=True, shuffle=True), "attention": "joint", "attention_pool": 2},
    ],
)
def test_gradients_equal_layer_by_layer(options):
    grid = (3, 5) if "local" not in options else (4, 18)
    block = t_block(**options)[0].double()
    x = torch.randn(3, 4, grid[0] * grid[1], 16, dtype=torch.float64)
    assert_same_gradients(block, x, grid)


@pytest.mark.parametrize("threads", [1, 3])
def test_gradients_of_dense_blocks_with_filters(threads):
    with using_threads(threads):
        assert_same_gradients(
            Block(12, 3, local=3, attention_pool=2).double(), torch.randn(4, 64, 12, dtype=torch.float64), (8, 8)
        )


def assert_same_gradients(block, x, grid):
    assert attention_half(block, x, grid) is not None
    assert ffn_half(block, x, grid, type(block.mlp)) is not None
    plain = copy.deepcopy(block)
    for layer in (plain.norm1, plain.norm2):
        layer.register_forward_hook(lambda *_: None)
    x.requires_grad_()
    found = [torch.autograd.grad((b(x, grid) ** 2).sum(), [x, *b.parameters()]) for b in (block, plain)]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_weights_that_change_are_seen_at_once():
    block, x = t_block()
    with torch.no_grad():
        before = block(x)
        block.mlp.fc2.weight_hat.mul_(2)
        changed = block(x)
        block.load_state_dict({name: torch.zeros_like(p) for name, p in block.state_dict().items()}, assign=True)
        assert not torch.allclose(before, changed)
        torch.testing.assert_close(block(x), x)


@pytest.mark.parametrize("watched", [False, True])  # as two operators, and with those of its layers
def test_second_derivatives_are_refused_in_a_sentence(watched):
    model = tcpvit.create_model("tcp_vit_cifar_plus", depth=1)
    if watched:
        model.blocks[0].norm1.register_forward_hook(lambda *_: None)
    images = torch.randn(2, 3, 32, 32, requires_grad=True)
    (grad,) = torch.autograd.grad(model(images).sum(), images, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only: for second ones set TCPVIT_KERNELS=0"):
        grad.square().sum().backward()


@pytest.mark.parametrize("width", [16, 96])
def test_compiles_as_one_graph_with_both_halves(width):
    torch.compiler.reset()
    block, x = TBlock(width, 4, 3), torch.randn(3, 2, 65, width)
    found = []

    def backend(graph, _):
        found.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    compiled = torch.compile(block, fullgraph=True, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), block(x))
    assert all(any(name in target for target in found) for name in CALLS), found


def test_exported_programs_do_not_contain_them():
    model, images = tcpvit.create_model("tcp_vit_cifar", depth=1).eval(), torch.randn(2, 3, 32, 32)
    program = torch.export.export(model, (images,))
    assert not [node for node in program.graph.nodes if "tcpvit" in str(node.target)]
    torch.testing.assert_close(program.module()(images), model(images), atol=1e-5, rtol=1e-4)


def test_a_block_is_two_calls():
    class Names(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    names: list[str] = []
    block, x = t_block()
    with torch.no_grad(), Names():
        block(x)
    assert [name for name in names if "view" not in name] == [
        "tcpvit.attention_half.default",
        "tcpvit.ffn_half.default",
    ]
