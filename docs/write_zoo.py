"""Put the weights of a finished run into the package, with a card that says what they are.

    python docs/write_zoo.py NAME RUN RECORD [--weights last]

NAME is the preset, RUN the folder of its run, RECORD the JSON file that `tcpvit reproduce` wrote for it. The weights
are those of the last epoch unless told otherwise: the best epoch is chosen on the images that measure it, as in the
paper's segmenters.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tcpvit.models import create_model, from_pretrained, save_pretrained
from tcpvit.models.zoo import CARD, RECIPE, ZOO
from tcpvit.training.folder import RunFolder
from tcpvit.training.preprocessing import PREPROCESSING

METRICS = {"top1": "top-1", "miou": "mIoU", "mdice": "mDice", "pixel_accuracy": "pixel accuracy"}


def main() -> None:
    """Copy the weights and write the card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("run", type=Path)
    parser.add_argument("record", type=Path)
    parser.add_argument("--weights", choices=("best", "last"), default="last")
    parser.add_argument("--note", default="", help="a sentence on the data that the record does not hold")
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
    save_pretrained(model, target)
    shutil.copy(saved / PREPROCESSING, target / PREPROCESSING)
    recipe = RunFolder(asked.run).recipe()
    recipe = replace(recipe, data=replace(recipe.data, root=None))  # where the images lay here is nobody's business
    (target / RECIPE).write_text(recipe.to_yaml(), encoding="utf-8")
    (target / CARD).write_text(
        card(asked.name, asked.weights, record, asked.note and f" {asked.note}"), encoding="utf-8"
    )


def card(name: str, weights: str, record: dict[str, Any], note: str = "") -> str:
    """What a person should know before using the weights."""
    found = {label: record.get(f"{metric}_{weights}", record.get(metric)) for metric, label in METRICS.items()}
    chosen = ", which was chosen on the images that measure it" if weights == "best" else ""
    measured = ", ".join(f"{label} {100 * value:.2f} %" for label, value in found.items() if value is not None)
    where = f"results/{record['study']}/{record['key']}.json"
    return f"""---
library_name: tcpvit
license: apache-2.0
tags: [tcp-vit, c-product]
---
# {name}

{record["parameters"]:,} parameters, trained on {record["dataset"]} ({record["train_images"]:,} images) for
{record["epochs"]} epochs with seed {record["seed"]}; the weights are those of the {weights} epoch{chosen}.

Measured on {record["test_images"]:,} images that it was not trained on: {measured}. The run was made by
`{record["command"]}` at commit {record["commit"]}; its record is `{where}`.{note}

```
tcpvit eval {name} --pretrained --dataset {record["dataset"]}
tcpvit predict {name} IMAGES
```

A small model trained for a short time on one set: good for experiments and comparisons, not for decisions about
people or anything else that matters. The images' licence terms are those of the set.
"""


if __name__ == "__main__":
    main()
