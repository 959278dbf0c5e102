"""TensorBoard events, where TensorBoard is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tcpvit.training.state import Row


class Events:
    """Writes each epoch's numbers as scalars; does nothing without TensorBoard."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._writer: Any = None

    def add(self, row: Row) -> None:
        """The numbers of an epoch."""
        writer = self._open(int(row["epoch"]))
        if writer is None:
            return
        for name, value in row.items():
            if name not in ("epoch", "step"):
                writer.add_scalar(name.replace("_", "/", 1), value, int(row["epoch"]))
        writer.flush()

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()

    def _open(self, epoch: int) -> Any:
        if self._writer is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                return None
            # What an interrupted session wrote from this epoch on is hidden, not shown twice.
            self._writer = SummaryWriter(str(self.folder), purge_step=epoch)
        return self._writer
