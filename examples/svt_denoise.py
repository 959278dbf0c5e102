"""Denoise a colour photograph by singular value thresholding.

A photograph is a tensor of 160×240 tubes, one for each pixel, with its three colours along the tube. Photographs have
few large singular values, noise has many small ones: shrink them all and mostly noise goes away. Under the DCT along
the tube, slice 0 is the mean of the colours and holds nearly all of the image, while the noise is spread evenly, so
the other slices can be shrunk almost to nothing. Colour by colour (the identity transform) there is no such slice.

    python examples/svt_denoise.py
"""

import math

import torch
from photographs import folder_of_figures, photograph, save, scores

from tcpvit.algebra import svt


def main() -> None:
    folder = folder_of_figures(__doc__)
    truth = photograph("china.jpg")
    sigma = 0.1
    noisy = truth + sigma * torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))

    # The singular values of an m×n slice of pure noise reach σ(√m + √n). Half of that takes away most of the noise
    # and still leaves the edges of the image.
    m, n, _ = truth.shape
    tau = 0.5 * sigma * (math.sqrt(m) + math.sqrt(n))
    by_colour = svt(noisy, tau, "identity")
    together = svt(noisy, tau)  # the DCT along the tube

    results = {"noisy": noisy, "colour by colour": by_colour, "colours together (DCT)": together}
    save(scores(results, truth), "svt_denoise.png", folder)


if __name__ == "__main__":
    main()
