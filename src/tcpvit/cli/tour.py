"""A short tour of the algebra in the terminal: what `tcpvit demo --algebra` shows (paper, Section 2)."""

from __future__ import annotations

import torch
from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from tcpvit import algebra
from tcpvit.errors import import_extra

# The three transforms that the tour compares: the paper's, the one its identity belongs to, and the t-product's.
SHOWN = ("dct", "cosine_kka", "dft")


def demo() -> None:
    """A short tour of the algebra.

    Shows the transforms, the product, its identity and what a weight costs on small numbers, then what the transform
    does for a photograph.

    Examples:
        tcpvit demo --algebra
    """
    console = Console(highlight=False)
    console.width = min(console.width, 100)
    torch.manual_seed(0)
    for number, stop in enumerate((transforms, product, identity, parameters, photograph), start=1):
        title = (stop.__doc__ or "").rstrip(".")
        console.print()
        console.rule(f"[bold cyan]{number}[/]  [bold]{title}", align="left", style="cyan")
        stop(console)


def transforms(console: Console) -> None:
    """A tube and its transforms."""
    pixel = torch.tensor([0.9, 0.6, 0.2], dtype=torch.float64)
    console.print(f"A tensor (m, n, C) is a matrix of tubes. One orange pixel is a tube of C = 3: {_numbers(pixel)}.\n")
    table = _table("transform", "the tube in the hat domain", "orthogonal?")
    for name in SHOWN:
        transform = algebra.get_transform(name, 3)
        table.add_row(
            name,
            _numbers(transform.to_hat(pixel)),
            _verdict("yes" if transform.is_orthogonal else "no", transform.is_orthogonal),
        )
    console.print(table)
    console.print("\nEntry 0 of the DCT is √3 times the channel mean; the others are contrasts between channels.")


def product(console: Console) -> None:
    """A ⋆ B multiplies slices in the hat domain."""
    A, B, C = _random(4, 5, 3), _random(5, 2, 3), _random(2, 6, 3)
    AB = algebra.cprod(A, B)
    console.print(
        f"A {tuple(A.shape)} ⋆ B {tuple(B.shape)} = {tuple(AB.shape)}: one matrix product for each of the C slices. "
        "On flattened tensors it is what a dense, structured matrix does.\n"
    )
    table = _table("law", "largest difference")
    columns = [(algebra.block_matrix(A) @ column.flatten()).view(4, 3) for column in B.unbind(1)]
    table.add_row("A ⋆ B = block_matrix(A) @ B", _gap(AB, torch.stack(columns, 1)))
    table.add_row("(A ⋆ B) ⋆ C = A ⋆ (B ⋆ C)", _gap(algebra.cprod(AB, C), algebra.cprod(A, algebra.cprod(B, C))))
    swapped = algebra.cprod(algebra.transpose(B), algebra.transpose(A))
    table.add_row("(A ⋆ B)ᵀ = Bᵀ ⋆ Aᵀ", _gap(algebra.transpose(AB), swapped))
    table.add_row("⟨A, A⟩ is the same in both domains", _gap(algebra.inner(A, A), algebra.to_hat(A).square().sum()))
    console.print(table)


def identity(console: Console) -> None:
    """The identity is not the one the paper writes down."""
    console.print(
        "The paper's identity has I as its first slice and zeros behind it. Whether I ⋆ A = A then holds depends on "
        "the transform. The identity of this library is the inverse transform of I in every slice, and always holds.\n"
    )
    A = _random(4, 4, 3)
    papers = torch.zeros_like(A)
    papers[..., 0] = torch.eye(4)
    table = _table("transform", "a diagonal tube of our I", "‖I ⋆ A − A‖ / ‖A‖, ours", "the paper's")
    for name in SHOWN:
        ours = algebra.identity(4, 3, transform=name, dtype=A.dtype)
        errors = [float((algebra.cprod(eye, A, transform=name) - A).norm() / A.norm()) for eye in (ours, papers)]
        table.add_row(name, _numbers(ours[0, 0]), *(_verdict(f"{e:.1e}", e < 1e-12) for e in errors))
    console.print(table)


def parameters(console: Console) -> None:
    """A c-product weight has 1/C of the numbers of a dense one."""
    console.print("C slices of d×d do the work of a dense (d·C)×(d·C) matrix: d²·C numbers instead of d²·C².\n")
    table = _table("tokens", "d", "C", "dense", "c-product", "ratio")
    for tokens, d, tube in (
        ("4×4 patches, RGB (the paper, CIFAR-10)", 16, 3),
        ("8×8 patches, RGB (the paper, Pet)", 64, 3),
        ("16×16 patches, RGB", 256, 3),
        ("4×4 patches, 200 spectral bands", 16, 200),
    ):
        dense, slices = (d * tube) ** 2, d * d * tube
        table.add_row(tokens, str(d), str(tube), f"{dense:,}", f"{slices:,}", f"1/{dense // slices}")
    console.print(table)


def photograph(console: Console) -> None:
    """The transform compresses a photograph."""
    photo = _photograph()  # (m, n, 3)
    m, n, tube = photo.shape
    console.print(
        f"The SVD of each slice of a {n}×{m} photograph, cut where that part of its energy is kept. The size is that "
        "of the factors: with the DCT, without a transform, and for the SVD of the photograph as one flat matrix.\n"
    )
    table = _table("energy", "error", "ranks of the slices", "size: DCT", "each channel", "flattened")
    shown = [photo]
    for energy in (0.95, 0.99, 0.999):
        fit = algebra.low_rank(photo, energy=energy)
        ranks, alone = _ranks(photo, energy, "dct"), _ranks(photo, energy, "identity")
        flat = _ranks(photo.reshape(m, n * tube, 1), energy, "identity")
        sizes = (m + n) * sum(ranks), (m + n) * sum(alone), (m + n * tube) * sum(flat)
        percent = [f"{size / photo.numel():.1%}" for size in sizes]
        table.add_row(f"{energy:.1%}", f"{float(fit.relative_error):.1%}", ", ".join(map(str, ranks)), *percent)
        shown.append(fit.approximation)
    console.print(table)
    console.print("\nMost of the rank goes to slice 0, the mean of the channels: at 95 % no colour is left.")
    if console.is_terminal:
        console.print("\nThe photograph, 95 % and 99 % of it:")
        width = (console.width - 2) // 3
        console.print(Columns([image(x, width) for x in shown[:3]], padding=(0, 1, 0, 0)))


def _ranks(A: Tensor, energy: float, transform: str) -> list[int]:
    """How many singular values each slice keeps."""
    S = algebra.truncated_svd(A, transform, energy=energy).S
    return algebra.multi_rank(S, transform).tolist()


def _photograph() -> Tensor:
    datasets = import_extra("sklearn.datasets", "the photograph of the tour comes with scikit-learn", "demo")
    return torch.from_numpy(datasets.load_sample_image("china.jpg").copy()).double() / 255


def image(photo: Tensor, width: int) -> Text:
    """Two pixels a character: the upper half of the block is the foreground, the lower one the background."""
    height = 2 * round(width * photo.shape[0] / photo.shape[1] / 2)
    pixels = torch.nn.functional.interpolate(photo.movedim(-1, 0)[None], (height, width), mode="area")[0]
    rows = (pixels.clamp(0, 1) * 255).round().int().movedim(0, -1).tolist()
    image = Text()
    for upper, lower in zip(rows[::2], rows[1::2], strict=True):
        for (r, g, b), (r2, g2, b2) in zip(upper, lower, strict=True):
            image.append("▀", f"rgb({r},{g},{b}) on rgb({r2},{g2},{b2})")
        image.append("\n")
    return image


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column(first, style="cyan")
    for header in others:
        table.add_column(header, justify="right")
    return table


def _verdict(text: str, good: bool) -> str:
    return f"[{'green' if good else 'red'}]{text}"


def _numbers(x: Tensor) -> str:
    x = torch.where(x.abs() < 1e-12, 0, x)
    return "(" + ", ".join(f"{v:.3g}" for v in x.tolist()) + ")"


def _gap(a: Tensor, b: Tensor) -> str:
    return f"{float((a - b).abs().max()):.1e}"
