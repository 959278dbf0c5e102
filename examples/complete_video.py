"""Fill in a video of which four fifths of the pixels are missing.

A clip of T grey frames is a tensor with one column for each frame, one row for each place, and the 4×4 pixels there as
a tube. Its frames resemble each other, so its tubal rank is low. `complete` looks for the tensor of least nuclear norm
that agrees with the pixels that are left. Frame by frame there is far too little to go by.

    python examples/complete_video.py
    python examples/complete_video.py --video clip.npz
"""

import torch
from clips import arguments, from_tubes, picture, to_tubes
from photographs import psnr, save

from tcpvit.algebra import complete


def main() -> None:
    clip, folder = arguments(__doc__)  # (T, H, W)
    known = torch.rand(clip.shape, generator=torch.Generator().manual_seed(0)) < 0.2
    seen = torch.where(known, clip, 0.0)

    # A clip is only nearly of low rank, so digits beyond the third mean nothing here.
    together = complete(to_tubes(seen), to_tubes(known), tol=1e-3)
    print(f"all frames: {together}")
    # Frames as slices that do not meet: (H, W, T) under the identity.
    alone = complete(seen.movedim(0, -1), known.movedim(0, -1), "identity", tol=1e-3).x.movedim(-1, 0)

    t = len(clip) // 2
    images = {f"frame {t}": picture(clip[t]), "20 % known": picture(seen[t])}
    for name, found in {"frame by frame": alone, "frames together (DCT)": from_tubes(together.x, clip)}.items():
        print(f"{name:24}{psnr(found, clip):6.2f} dB")
        images[f"{name}, {psnr(found, clip):.1f} dB"] = picture(found[t])
    save(images, "complete_video.png", folder)


if __name__ == "__main__":
    main()
