"""Separate what moves in a video from what does not.

A clip of T grey frames is a tensor with one column for each frame, one row for each place, and the 4×4 pixels there as
a tube. If nothing moves, all columns are equal and the tubal rank is one. `robust_pca` splits the clip into a tensor of
low tubal rank, the background, and a sparse one, what moves in front of it. Nobody tells it what to look for.

    python examples/robust_pca_video.py
    python examples/robust_pca_video.py --video clip.npz
"""

import math

from clips import arguments, from_tubes, picture, to_tubes
from photographs import save

from tcpvit.algebra import robust_pca, tubal_rank


def main() -> None:
    clip, folder = arguments(__doc__)  # (T, H, W)
    tensor = to_tubes(clip)
    # What crosses a place stays there for several frames. That is less sparse than the default weight, 1/√places,
    # takes errors to be, so the sparse part is made cheaper.
    found = robust_pca(tensor, 0.6 / math.sqrt(len(tensor)), tol=1e-3)
    print(found)
    print(f"tubal rank of the clip {tubal_rank(tensor)}, of its background {tubal_rank(found.low_rank, rtol=1e-3)}")
    background, moving = (from_tubes(part, clip) for part in (found.low_rank, found.sparse))
    mask = moving.abs() > 0.05
    print(f"{mask.float().mean():.1%} of the pixels move")

    t = int(mask.float().mean((1, 2)).argmax())  # where most of it moves
    images = {
        f"frame {t}": picture(clip[t]),
        "low tubal rank: the background": picture(background[t]),
        "sparse: what moves, 0 is grey": picture(moving[t] + 0.5),
        "where that is above 0.05": picture(mask[t].float()),
    }
    save(images, "robust_pca_video.png", folder)


if __name__ == "__main__":
    main()
