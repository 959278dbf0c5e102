"""Whole models side by side: the script form of `tcpvit bench`, writing results/bench/models.json by default."""

from pathlib import Path

from tcpvit.studies.speed import bench

if __name__ == "__main__":
    bench(out=Path("results/bench/models.json"))
