"""Put the weights of a finished run into the package, with a card that says what they are.

    python -m experiments.zoo NAME RUN RECORD [--weights last]

NAME is the preset, RUN the folder of its run, RECORD the JSON file that the study wrote for it. The weights are those
of the last epoch unless told otherwise: the best epoch is chosen on the images that measure it, as in the paper's
segmenters. The card is Markdown that people write; the program fills its block of facts.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from experiments.pages import fill
from tcpvit.models import create_model, from_pretrained, save_pretrained
from tcpvit.models.zoo import CARD, RECIPE, ZOO
from tcpvit.tables import Table, render
from tcpvit.training.folder import RunFolder
from tcpvit.training.preprocessing import PREPROCESSING

CARD_TEXT = """---
library_name: tcpvit
license: apache-2.0
tags: [tcp-vit, c-product]
---
# NAME

<!-- facts -->
<!-- /facts -->
"""
METRICS = {"top1": "top-1", "miou": "mIoU", "mdice": "mDice", "pixel_accuracy": "pixel accuracy"}


def main() -> None:
    """Copy the weights and write the card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("run", type=Path)
    parser.add_argument("record", type=Path)
    parser.add_argument("--weights", choices=("best", "last"), default="last")
    asked = parser.parse_args()
    record = json.loads(asked.record.read_text(encoding="utf-8"))
    saved, target = asked.run / asked.weights, ZOO / asked.name
    trained = from_pretrained(saved)
    model = create_model(asked.name, num_classes=trained.config.num_classes).eval()
    model.load_state_dict(trained.state_dict())
    images = torch.randn(2, *json.loads((saved / PREPROCESSING).read_text(encoding="utf-8"))["image_shape"])
    if not torch.equal(model(images), trained.eval()(images)):  # a config may say the same in other words
        raise SystemExit(f"{saved} is no {asked.name}: with the same weights it computes something else")
    target.mkdir(parents=True, exist_ok=True)
    if not (target / CARD).is_file():  # before saving, which would write an empty card of the Hub's
        (target / CARD).write_text(CARD_TEXT.replace("NAME", asked.name), encoding="utf-8")
    save_pretrained(model, target)
    shutil.copy(saved / PREPROCESSING, target / PREPROCESSING)
    recipe = RunFolder(asked.run).recipe()
    recipe = replace(recipe, data=replace(recipe.data, root=None))  # where the images lay here is nobody's business
    (target / RECIPE).write_text(recipe.to_yaml(), encoding="utf-8")
    fill(target / CARD, {"facts": facts(asked.weights, record)})


def facts(weights: str, record: dict[str, Any]) -> str:
    """What the record says of the weights, as a table."""
    table = Table("facts", "What was measured", ["", "value"])
    table.add("parameters", f"{record['parameters']:,}")
    table.add("trained on", f"{record['dataset']}, {record['train_images']:,} images, {record['epochs']} epochs")
    table.add("seed and weights", f"{record['seed']}, of the {weights} epoch")
    table.add("measured on", f"{record['test_images']:,} other images")
    for metric, label in METRICS.items():
        value = record.get(f"{metric}_{weights}", record.get(metric))
        if value is not None:
            table.add(label, f"{100 * value:.2f} %")
    table.add("record", f"results/{record['study']}/{record['key']}.json")
    table.add("commit", str(record["commit"]))
    table.add("command", f"`{record['command']}`")
    return render([table], "markdown")


if __name__ == "__main__":
    main()
