"""Separate a colour photograph from gross errors at unknown places.

A tenth of all numbers is replaced by random ones. Nobody says which: `robust_pca` splits what it sees into a tensor of
low tubal rank, the photograph, and a sparse one, the errors. The weight between the two follows from the size of the
tensor, there is nothing to tune.

    python examples/robust_pca_photo.py
"""

import torch
from photographs import folder_of_figures, photograph, save, scores

from tcpvit.algebra import robust_pca


def main() -> None:
    folder = folder_of_figures(__doc__)
    truth = photograph("china.jpg")
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(truth.shape, generator=generator) < 0.1
    seen = torch.where(wrong, torch.rand(truth.shape, generator=generator), truth)

    # A photograph is only nearly of low rank, so digits beyond the third mean nothing here.
    by_colour = robust_pca(seen, transform="identity", tol=1e-3)
    together = robust_pca(seen, tol=1e-3)
    print(f"with the DCT: {together}")

    results = {
        "10 % wrong": seen,
        "colour by colour": by_colour.low_rank,
        "colours together (DCT)": together.low_rank,
    }
    images = scores(results, truth) | {"the sparse part, 0 is grey": together.sparse + 0.5}
    save(images, "robust_pca_photo.png", folder)


if __name__ == "__main__":
    main()
