"""While torch traces, plain torch takes the place of the kernels: a trace should run without this library."""

import io

import pytest
import torch

import tcpvit


def test_a_trace_has_no_operators_of_ours():
    model, images = tcpvit.create_model("tcp_vit_cifar").eval(), torch.randn(2, 3, 32, 32)
    traced = torch.jit.trace(model, images, check_trace=False)
    assert not [node.kind() for node in traced.inlined_graph.nodes() if node.kind().startswith("tcpvit")]
    torch.testing.assert_close(traced(images), model(images))


@pytest.mark.filterwarnings("ignore")
def test_the_old_onnx_exporter_takes_a_model_with_any_batch_size():
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    model, file = tcpvit.create_model("tcp_vit_cifar").eval(), io.BytesIO()
    axes = {"images": {0: "batch"}}
    example = (torch.randn(2, 3, 32, 32),)
    torch.onnx.export(model, example, file, dynamo=False, input_names=["images"], dynamic_axes=axes)
    images = torch.randn(5, 3, 32, 32)
    (found,) = runtime.InferenceSession(file.getvalue()).run(None, {"images": images.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(images).detach(), atol=1e-5, rtol=1e-4)
