"""Take a colour photograph apart into its hat slices.

Under the DCT along the tube, slice 0 is the mean of red, green and blue, slice 1 is red against blue, and slice 2 is
green against both. Each slice alone, transformed back, is an image, and the three add up to the photograph.

    python examples/photo_slices.py
"""

import torch
from photographs import folder_of_figures, photograph
from PIL import Image
from torch import Tensor

from tcpvit.algebra import from_hat, to_hat


def main() -> None:
    folder = folder_of_figures(__doc__)
    folder.mkdir(parents=True, exist_ok=True)
    photo = photograph("china.jpg", width=360)
    hat = to_hat(photo)
    parts = [from_hat(hat * torch.eye(3)[k]) for k in range(3)]  # each slice alone, in the spatial domain
    assert torch.allclose(sum(parts), photo, atol=1e-5)
    # Contrasts are positive and negative: they are shown around grey, and three times as strong as they are.
    shown = {"photo": photo, "photo_slice_0": parts[0]}
    shown |= {f"photo_slice_{k}": 0.5 + 3 * parts[k] for k in (1, 2)}
    for name, image in shown.items():
        Image.fromarray(as_bytes(image)).save(folder / f"{name}.webp", quality=80, method=6)
        print(f"wrote {folder / name}.webp")
    shares = hat.square().sum((0, 1)) / hat.square().sum()
    print("energy of the slices: " + ", ".join(f"{share:.1%}" for share in shares.tolist()))


def as_bytes(image: Tensor):
    return (255 * image.clamp(0, 1)).round().to(torch.uint8).numpy()


if __name__ == "__main__":
    main()
