"""The explorer in a real browser: its numbers are torch's, and what a visitor can do works without an error."""

from __future__ import annotations

import base64
import io
import json
import re

import numpy as np
import pytest
import torch
from browser import open_browser
from PIL import Image

from tcpvit.cli.app import main
from tcpvit.data.augment import normalise
from tcpvit.data.images import resize_pixels
from tcpvit.inference import load_model
from tcpvit.inference.loading import LoadedModel
from tcpvit.inference.page import FILES, build_page, find_twin
from tcpvit.models import create_model
from tcpvit.models.config import ViTConfig
from tcpvit.models.vit import VisionTransformer

DROP = """
const bytes = Uint8Array.from(atob(arguments[0]), (letter) => letter.charCodeAt(0)), transfer = new DataTransfer();
transfer.items.add(new File([bytes], "dropped.png", { type: "image/png" }));
document.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
"""
SETTLED = """
const [image, done] = arguments, there = () => found && !refresh.asked && (!image || state.image === image);
(function wait() { there() ? done() : setTimeout(wait, 20); })();
"""


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def explorer(tmp_path_factory):
    """The page of the weights that come with the package, beside an untrained twin."""
    loaded = load_model("tcp_vit_cifar_plus")
    twin = LoadedModel("std_vit_cifar", create_model("std_vit_cifar").eval(), None, loaded.preprocessing)
    file = tmp_path_factory.mktemp("page") / "explorer.html"
    file.write_text(build_page(loaded, twin), encoding="utf-8")
    return file, loaded, twin


def settle(browser, image=None):
    """Wait until the page shows what was asked of it, and the image of that name."""
    browser.execute_async_script(SETTLED, image)


def open_page(browser, file, state=""):
    browser.get("about:blank")
    browser.get(f"file://{file}#{state}")
    settle(browser)


def test_the_logits_are_those_of_torch_for_a_dropped_image(browser, explorer):
    file, loaded, twin = explorer
    open_page(browser, file)
    pixels = np.random.default_rng(0).integers(0, 256, (48, 40, 3), dtype=np.uint8)
    browser.execute_script(DROP, as_png(pixels))
    settle(browser, "own")
    fitted = resize_pixels(pixels, (32, 32), (0, 4, 40, 44))  # the middle of the image
    shown = np.array(browser.execute_script("return Array.from(pixels)")).reshape(32, 32, 3)
    assert np.abs(shown - fitted.astype(int)).max() <= 2  # Pillow computes with whole numbers
    found = browser.execute_script("return [found.tcp.logits, found.twin.logits]")
    for logits, each in zip(found, (loaded, twin), strict=True):
        torch.testing.assert_close(torch.tensor(logits), torch_logits(each, shown), atol=1e-4, rtol=0)
    no_errors(browser)


def test_a_slice_that_is_switched_off_is_zero_in_every_token(browser, explorer):
    file, loaded, _ = explorer
    open_page(browser, file, "image=horse")
    before = browser.execute_script("return found.tcp.logits")
    browser.find_element("css selector", "#switches button:nth-child(2)").click()
    settle(browser)
    pixels = np.array(Image.open(FILES / "images" / "horse.png").convert("RGB"))
    kept = torch.tensor([1.0, 0.0, 1.0]).view(3, 1, 1, 1)
    handle = loaded.model.embed.register_forward_hook(lambda _, __, x_hat: x_hat * kept)
    expected = torch_logits(loaded, pixels)
    handle.remove()
    without = torch.tensor(browser.execute_script("return found.tcp.logits"))
    torch.testing.assert_close(without, expected, atol=1e-4, rtol=0)
    assert (without - torch.tensor(before)).abs().max() > 0.1
    no_errors(browser)


def test_attention_under_the_mouse_is_the_models(browser, explorer):
    from selenium.webdriver import ActionChains

    file, loaded, _ = explorer
    open_page(browser, file, "image=ship&block=1&head=2")
    canvas = browser.find_element("id", "look")
    browser.execute_script("arguments[0].scrollIntoView({ block: 'center' })", canvas)
    step = canvas.size["width"] / 8
    place = ActionChains(browser, duration=0).move_to_element_with_offset(canvas, round(2.5 * step), round(-1.5 * step))
    place.perform()
    settle(browser)
    patch = browser.execute_script("return state.patch")
    assert patch == 2 * 8 + 6
    row = browser.execute_script("return Array.from(TCP.attentionRow(found.tcp.qkv[1], 2, null, state.patch + 1))")
    pixels = np.array(Image.open(FILES / "images" / "ship.png").convert("RGB"))
    maps = loaded.model.attention_maps(prepared(loaded, pixels))[1]  # (1, H, 65, 65)
    torch.testing.assert_close(torch.tensor(row), maps[0, 2, patch + 1], atol=1e-5, rtol=0)
    no_errors(browser)


def test_the_address_brings_everything_back(browser, explorer):
    file, *_ = explorer
    open_page(
        browser,
        file,
        "image=frog&keep=110&turn=0.4&patch=9&block=2&head=1&slice=2&map=fc1&stage=3&ask=patch&theme=dark",
    )
    browser.execute_async_script("setTimeout(arguments[0], 400)")
    address = browser.execute_script("return location.hash")
    state = browser.execute_script("return state")
    assert state["keep"] == [1, 1, 0]
    assert [state[key] for key in ("image", "turn", "patch", "block", "head", "slice", "map", "stage", "theme")] == [
        "frog", 0.4, 9, 2, 1, 2, "fc1", 3, "dark",
    ]  # fmt: skip
    browser.execute_script("paintColour = '#ff0000'; paintAt(16, 16)")
    settle(browser)
    browser.execute_async_script("setTimeout(arguments[0], 400)")
    painted = browser.execute_script("return [location.hash, Array.from(pixels)]")
    open_page(browser, file, painted[0][1:])
    assert browser.execute_script("return Array.from(pixels)") == painted[1]
    open_page(browser, file, "image=__proto__&keep=9&turn=NaN&patch=-1&block=1e9&map=constructor&pixels=%00")
    assert browser.execute_script("return [state.keep, state.turn, state.block]") == [[1, 1, 1], 1, 3]
    assert address.startswith("#image=frog")
    no_errors(browser)


def test_it_works_by_keyboard_and_on_a_phone(browser, explorer):
    from selenium.webdriver import ActionChains

    file, *_ = explorer
    size = {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        open_page(browser, file)
        assert browser.execute_script("return document.documentElement.scrollWidth") == 390
        browser.execute_script("document.getElementById('patched').focus()")
        patch = browser.execute_script("return state.patch")
        ActionChains(browser).send_keys("1", "[", "\ue014", "\ue013").perform()  # right, up
        settle(browser)
        state = browser.execute_script("return state")
        assert (state["keep"], state["block"], state["patch"]) == ([0, 1, 1], 2, patch + 1 - 8)
        no_errors(browser)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize(
    "options",
    [
        {"attention": "slice"},
        {"attention": "slice", "coupling": ("norm",), "patch_embed": "shared", "embed_dim": 24, "global_pool": "avg"},
        {"attention": "joint", "activation_domain": "spatial", "patch_embed": "t_linear", "qkv_bias": False},
        {"attention": "joint", "coupling": ("shared",), "patch_embed": "t_linear", "transform": "haar"},
    ],
)
def test_every_option_that_it_takes_computes_as_in_torch(browser, tmp_path, options):
    torch.manual_seed(0)
    config = {"embed_dim": 48, **options}
    model = VisionTransformer(
        ViTConfig("tcp", img_size=16, patch_size=4, num_heads=2, depth=2, num_classes=5, **config)
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    loaded = LoadedModel("small", model.eval())
    file = tmp_path / "page.html"
    file.write_text(build_page(loaded), encoding="utf-8")
    open_page(browser, file)
    pixels = np.array(browser.execute_script("return Array.from(pixels)")).reshape(16, 16, 3)
    logits = torch.tensor(browser.execute_script("return found.tcp.logits"))
    torch.testing.assert_close(logits, torch_logits(loaded, pixels), atol=1e-4, rtol=1e-5)
    no_errors(browser)


def test_it_is_one_small_file_that_asks_no_other_host(tmp_path):
    assert main(["page", "--out", str(tmp_path / "explorer.html")]) == 0
    text = (tmp_path / "explorer.html").read_text(encoding="utf-8")
    assert len(text.encode()) < 1_000_000
    assert not re.search(r"https?://", text)
    assert not re.search(r"<!-- (title|style|data|weights|script) -->", text)


def test_names_of_classes_are_text_and_no_markup():
    loaded = load_model("tcp_vit_cifar_plus")
    loaded.preprocessing["classes"][0] = "</script><script>alert(1)</script>"
    text = build_page(loaded)
    assert "<script>alert" not in text
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    assert json.loads(data[1])["classes"][0] == "</script><script>alert(1)</script>"


def test_models_that_it_cannot_show_are_refused():
    loaded = load_model("tcp_vit_cifar_plus")
    for name, why in {
        "std_vit_cifar": "no TCP-ViT",
        "tcp_vit_pet": "no TCP-ViT that classifies",
        "tcp_scene": "three channels",
        "tcp_deit_tiny": "distillation token",
        "tcp_vit_cifar_44k": "tube that is not the three channels",
    }.items():
        with pytest.raises(ValueError, match=why):
            build_page(
                LoadedModel(name, create_model(name).eval(), None, load_model("tcp_vit_cifar_plus").preprocessing)
            )
    loaded = load_model("tcp_vit_cifar_plus")
    other = {**loaded.preprocessing, "classes": ["a", "b"]}
    with pytest.raises(ValueError, match="same task"):
        build_page(loaded, LoadedModel("std", create_model("std_vit_cifar", num_classes=2).eval(), None, other))


def test_a_twin_of_another_task_is_not_found():
    loaded = load_model("tcp_vit_cifar_plus")
    assert (
        find_twin(LoadedModel("tcp_vit_cifar", loaded.model, None, {**loaded.preprocessing, "classes": ["a"]})) is None
    )


def prepared(loaded, pixels):
    about = loaded.preparation()
    return normalise(torch.tensor(pixels).permute(2, 0, 1)[None].float(), tuple(about["mean"]), tuple(about["std"]))


@torch.no_grad()
def torch_logits(loaded, pixels):
    return loaded.model(prepared(loaded, pixels))[0]


def as_png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="png")
    return base64.b64encode(file.getvalue()).decode()


def no_errors(browser):
    assert [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
