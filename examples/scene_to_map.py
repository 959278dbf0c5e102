"""From a cube to a class map: look into a scene, split it, train, measure, classify every pixel, see what matters.

    python examples/scene_to_map.py                 # the built-in scene (made, not measured), under a minute
    python examples/scene_to_map.py FOLDER

The cells between the lines `# %%` can be run one by one in an editor or a notebook. For a scene of your own change the
first of them: `tcpvit.data.read_scene("cube.hdr", "labels.mat")`.
"""

import sys
from pathlib import Path

from tcpvit.data import find_scene
from tcpvit.data.scenes import composite, fit_statistics, make_split, scene_splits
from tcpvit.figures.scenes import PARTS, colour_classes, colour_errors, colour_split, draw_maps
from tcpvit.figures.spectra import draw_importance
from tcpvit.figures.style import save_figure
from tcpvit.inference import load_model
from tcpvit.inference.importance import band_importance
from tcpvit.inference.scene_map import classify_scene
from tcpvit.training import load_recipe, train

# %% A scene: an image of many bands, with labels for some of its pixels
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "scene_to_map")
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 15
scene = find_scene("materials")
print(f"{scene.name}: {scene.shape[0]}×{scene.shape[1]} pixels, {scene.bands} bands, {scene.num_classes} classes")

# %% Which pixels train and which test: whole fields, so that no test window contains a training pixel
split = make_split(scene, "disjoint", seed=1, validation_by="pixels")
splits = scene_splits(scene.name, scene, split)
print(*splits.notes, sep="\n")

# %% How many frequencies of the spectrum are worth keeping
statistics = fit_statistics(scene, split)
print(statistics.reason)

# %% Train the c-product model by the recipe for scenes
recipe = load_recipe("scene", [f"schedule.epochs={epochs}", "device=cpu"])
result = train(recipe, folder / "run", splits=splits, overwrite=True)

# %% Measure it: overall and average accuracy, κ, and the accuracy of each class
for name in ("oa", "aa", "kappa"):
    low, high = result.test["intervals"][name]
    print(f"{name}: {result.test[name]:.3f} ({low:.3f} to {high:.3f})")
for name, accuracy in zip(scene.class_names, result.test["by_class"]["accuracy"], strict=True):
    print(f"  {name}: {'no test pixels' if accuracy is None else f'{accuracy:.3f}'}")

# %% The class of every pixel, as an image, as numbers, and for a GIS
found = classify_scene(load_model(folder / "run"), scene)
for ending in ("png", "npy", "hdr"):
    found.write(folder / f"classes.{ending}")

# %% Figures: truth beside prediction with training and guard pixels, errors, and which bands matter
maps = {
    "false colours": composite(scene),
    "truth": colour_classes(scene.labels, scene.colours),
    "disjoint split": colour_split(split.codes, scene.labels, scene.colours),
    "prediction": colour_classes(found.classes, scene.colours),
    "errors (test pixels)": colour_errors(scene.labels, found.classes, split.mask("test")),
}
save_figure(draw_maps(maps, dict(zip(scene.class_names, scene.colours, strict=True)), PARTS), folder / "maps", ["png"])
importance = band_importance(result.model, splits.test)
save_figure(
    draw_importance(importance.by_band, importance.by_frequency, scene.wavelengths), folder / "importance", ["png"]
)
print(f"Maps and figures are in {folder}")
