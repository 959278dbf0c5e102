"""Volumes and clips: what has a depth or a time beside height and width.

Images (N, C, T, H, W) that `tcpvit.data.Batches` takes as any others; files of volumes (NIfTI, DICOM, NumPy, TIFF) and
of video; sets made on the spot.
"""

from tcpvit.data.volumes.sets import Clips, Volumes

__all__ = ["Clips", "Volumes"]
