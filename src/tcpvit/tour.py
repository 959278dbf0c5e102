"""A short tour of the algebra in the terminal: what `tcpvit demo` shows (paper, Section 2)."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from tcpvit import algebra

# The three transforms that the tour compares: the paper's, the one its identity belongs to, and the t-product's.
SHOWN = ("dct", "cosine_kka", "dft")


def demo() -> None:
    """A short tour of the algebra.

    Shows the transforms, the product, its identity and what a weight costs, each on small numbers.

    Examples:
        tcpvit demo
    """
    console = Console(highlight=False)
    torch.manual_seed(0)
    for number, stop in enumerate((transforms, product, identity, parameters), start=1):
        title = (stop.__doc__ or "").splitlines()[0].rstrip(".")
        console.print()
        console.rule(f"[bold cyan]{number}[/]  [bold]{title}", align="left", style="cyan")
        stop(console)
    console.print()


def transforms(console: Console) -> None:
    """A tube and its transforms."""
    pixel = torch.tensor([0.9, 0.6, 0.2], dtype=torch.float64)
    console.print(f"A tensor (m, n, C) is a matrix of tubes. One orange pixel is a tube of C = 3: {_numbers(pixel)}.")
    table = _table("transform", "the tube in the hat domain", "orthogonal?")
    for name in SHOWN:
        transform = algebra.get_transform(name, 3)
        table.add_row(name, _numbers(transform.forward(pixel)), "yes" if transform.is_orthogonal else "[red]no")
    console.print(table)
    console.print("Entry 0 of the DCT is √3 times the channel mean; the others are contrasts between channels.")


def product(console: Console) -> None:
    """A ⋆ B multiplies slices in the hat domain."""
    A, B = _random(4, 5, 3), _random(5, 2, 3)
    dense = (algebra.block_matrix(A) @ B.movedim(1, 0).reshape(2, -1).mT).mT.reshape(2, 4, 3).movedim(0, 1)
    console.print(f"A {tuple(A.shape)} ⋆ B {tuple(B.shape)} = {tuple(algebra.cprod(A, B).shape)}: one matrix product")
    console.print("for each of the C slices, which is what a structured dense matrix would do.")
    table = _table("law", "largest difference")
    table.add_row("A ⋆ B = block_matrix(A) @ B", _gap(algebra.cprod(A, B), dense))
    C = _random(2, 6, 3)
    both_ways = algebra.cprod(algebra.cprod(A, B), C), algebra.cprod(A, algebra.cprod(B, C))
    table.add_row("(A ⋆ B) ⋆ C = A ⋆ (B ⋆ C)", _gap(*both_ways))
    transposed = algebra.cprod(algebra.transpose(B), algebra.transpose(A))
    table.add_row("(A ⋆ B)ᵀ = Bᵀ ⋆ Aᵀ", _gap(algebra.transpose(algebra.cprod(A, B)), transposed))
    table.add_row("⟨A, A⟩ = ⟨Â, Â⟩ (Parseval)", _gap(A.square().sum(), algebra.to_hat(A).square().sum()))
    console.print(table)


def identity(console: Console) -> None:
    """The identity is not the one the paper writes down."""
    console.print("The paper's identity has I as its first slice and zeros behind it. Whether I ⋆ A = A then holds")
    console.print("depends on the transform; the identity of this library holds for all of them.")
    A = _random(4, 4, 3)
    papers = torch.zeros_like(A)
    papers[..., 0] = torch.eye(4, dtype=A.dtype)
    table = _table("transform", "a diagonal tube of our I", "‖I⋆A − A‖/‖A‖, ours", "the paper's")
    for name in SHOWN:
        ours = algebra.identity(4, 3, transform=name, dtype=A.dtype)
        errors = [float((algebra.cprod(eye, A, transform=name) - A).norm() / A.norm()) for eye in (ours, papers)]
        table.add_row(name, _numbers(ours[0, 0]), *(f"[{'red' if e > 1e-9 else 'green'}]{e:.1e}" for e in errors))
    console.print(table)


def parameters(console: Console) -> None:
    """A c-product weight has 1/C of the numbers of a dense one."""
    console.print("d×d slices, C of them, do the work of a dense (d·C)×(d·C) matrix: d²·C numbers instead of d²·C².")
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


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column(first, style="cyan")
    for header in others:
        table.add_column(header, justify="right")
    return table


def _numbers(x: Tensor) -> str:
    return "(" + ", ".join(f"{v:.3g}" for v in x.tolist()) + ")"


def _gap(a: Tensor, b: Tensor) -> str:
    return f"{float((a - b).abs().max()):.1e}"
