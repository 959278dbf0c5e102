"""Complete a colour photograph of which 60 % is missing.

Every colour of every pixel is lost with probability 0.6, so hardly a pixel keeps all three. `complete` looks for the
tensor of least nuclear norm, the convex stand-in for low tubal rank, that agrees with what is left. Under the DCT
along the tube the colours are recovered together and each helps the others; under the identity they are three
matrices that know nothing of each other.

    python examples/complete_photo.py
"""

import torch
from photographs import folder_of_figures, photograph, save, scores

from tcpvit.algebra import complete


def main() -> None:
    folder = folder_of_figures(__doc__)
    truth = photograph("flower.jpg")
    known = torch.rand(truth.shape, generator=torch.Generator().manual_seed(0)) < 0.4
    seen = torch.where(known, truth, 0.0)

    # A photograph is only nearly of low rank, so digits beyond the third mean nothing here.
    by_colour = complete(seen, known, "identity", tol=1e-3)
    together = complete(seen, known, tol=1e-3)
    print(f"with the DCT: {together}")

    results = {"40 % known": seen, "colour by colour": by_colour.x, "colours together (DCT)": together.x}
    save(scores(results, truth), "complete_photo.png", folder)


if __name__ == "__main__":
    main()
