"""Volumes and clips in memory, (N, C, T, H, W): an `ImageSet` of three axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tcpvit.data.image_set import ImageSet


@dataclass(frozen=True, eq=False)
class Volumes(ImageSet):
    """Volumes with a label each, or with masks of their shape."""

    unit: ClassVar[str] = "volumes"


@dataclass(frozen=True, eq=False)
class RankedVolumes(Volumes):
    """Volumes of classes of unequal size, where accuracy says little: the area under the ROC curve decides."""

    metric: ClassVar[str | None] = "auc"


@dataclass(frozen=True, eq=False)
class Clips(ImageSet):
    """Clips with a label each; the first of the three axes is the time."""

    unit: ClassVar[str] = "clips"
