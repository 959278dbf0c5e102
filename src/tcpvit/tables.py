"""Tables: one structure of plain values, shown in a terminal, as HTML, as Markdown, as LaTeX or as JSON.

Rooms that report numbers fill a `Table`, which `tcpvit.cli.show` prints; how a value is written follows from its type.
"""

from __future__ import annotations

import html
import io
import json as json_module
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from tcpvit.errors import printable

Cell = str | int | float | None
Style = Literal["text", "html", "markdown", "latex", "json"]


class Ratio(float):
    """A quotient, written 0.362×.

    >>> as_text(Ratio(43114 / 119194))
    '0.362×'
    """

    @classmethod
    def of(cls, part: float | None, whole: float | None) -> Ratio | None:
        """part / whole, or None where either is missing or the whole is 0."""
        return cls(part / whole) if part is not None and whole else None


class Bytes(int):
    """An amount of memory, written in powers of 1000.

    >>> as_text(Bytes(476_776))
    '476.8 kB'
    """


class Math(str):
    """A formula in Unicode, which LaTeX sets as mathematics.

    >>> as_latex(Math("(4+2r)·d²·C"))
    '$(4+2r)\\\\,d^{2}\\\\,C$'
    """


class Written(str):
    """A number that is written out already, as 1:30 or 81.2 ± 0.4 %; it is set flush right like other numbers."""


@dataclass(frozen=True)
class Row:
    """The cells of a row, its name first; `level` indents the name, `strong` sets the row in bold."""

    cells: tuple[Cell, ...]
    level: int = 0
    strong: bool = False


@dataclass
class Table:
    """A table: `name` is its key in JSON and its label in LaTeX, `notes` are sentences below it.

    >>> table = Table("sizes", "Two sizes", ["part", "parameters", "ratio"])
    >>> table.add("head", 490, Ratio(1))
    >>> print(render([table], "markdown"))
    **Two sizes**
    <BLANKLINE>
    | part | parameters | ratio |
    | --- | ---: | ---: |
    | head | 490 | 1.000× |
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: Cell, level: int = 0, strong: bool = False) -> None:
        """Append a row."""
        if len(cells) != len(self.columns):
            raise ValueError(
                f"the table {self.name!r} has {len(self.columns)} columns, got a row of {len(cells)} cells"
            )
        self.rows.append(Row(cells, level, strong))

    def is_numeric(self, column: int) -> bool:
        """True if the column holds numbers (or nothing), so that it is set flush right."""
        cells = [row.cells[column] for row in self.rows]
        return column > 0 and not any(isinstance(cell, str) and not isinstance(cell, Written) for cell in cells)

    def _repr_html_(self) -> str:
        return _html(self)


class Tables(list[Table]):
    """Tables that a notebook shows one below the other."""

    def _repr_html_(self) -> str:
        return render(self, "html")


def render(tables: Sequence[Table], style: Style) -> str:
    """The tables as one string."""
    if style == "json":
        return json_text({table.name: _as_json(table) for table in tables})
    if style == "text":
        text = io.StringIO()
        print_to(Console(file=text, width=1000, highlight=False), tables)
        return text.getvalue().rstrip("\n")
    write = {"html": _html, "markdown": _markdown, "latex": _latex}[style]
    return "\n\n".join(write(table) for table in tables)


def json_text(content: object) -> str:
    r"""Content as JSON for terminals and files: what cannot be shown, as in names of files, is escaped.

    >>> print(json_text("猫\udcff\x9b"))
    "猫\udcff\u009b"
    """
    text = json_module.dumps(content, indent=2, ensure_ascii=False)
    return re.sub(r"[^\n -~]", lambda found: _json_escape(found[0]), text)


def _json_escape(character: str) -> str:
    return character if printable(character) == character else json_module.dumps(character)[1:-1]


def as_text(cell: Cell) -> str:
    """A cell as people read it.

    >>> [as_text(x) for x in (119194, 0.25, None, True, "dct")]
    ['119,194', '0.25', '–', 'yes', 'dct']
    """
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, Ratio):
        return f"{cell:.3f}×" if cell >= 0.01 or cell == 0 else f"{cell:.3g}×"
    if isinstance(cell, Bytes):
        power = min(int(math.log10(cell) // 3), 4) if cell > 0 else 0
        return f"{cell / 1000**power:.{1 if power else 0}f} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:.4g}" if isinstance(cell, float) else printable(cell)


def as_latex(cell: Cell) -> str:
    """A cell for LaTeX: formulas as mathematics, everything else escaped.

    >>> as_latex("50 % of d_h"), as_latex(Ratio(0.5)), as_latex(Math("d×d_ff×C"))
    ('50 \\\\% of d\\\\_h', '0.500$\\\\times$', '$d \\\\times d_{\\\\mathrm{ff}} \\\\times C$')
    """
    if isinstance(cell, Math):
        return f"${_formula(cell)}$"
    text = re.sub(r"[\\{}&%$#_~^]", lambda found: _ESCAPES.get(found[0], "\\" + found[0]), as_text(cell))
    return re.sub(f"[{''.join(_SYMBOLS)}]", lambda found: f"${_SYMBOLS[found[0]].strip()}$", text).replace("–", "--")


_ESCAPES = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SYMBOLS = {
    "×": r" \times ",
    "·": r"\,",
    "−": "-",
    "²": "^{2}",
    "³": "^{3}",
    "½": r"\tfrac{1}{2}",
    "α": r"\alpha ",
    "ρ": r"\rho ",
    "Φ": r"\Phi ",
    "Σ": r"\Sigma ",
    "≈": r" \approx ",
    "≤": r" \le ",
    "→": r" \to ",
}


def _formula(unicode: str) -> str:
    def subscript(found: re.Match[str]) -> str:
        return rf"_{{\mathrm{{{found[1]}}}}}" if found[1].isalpha() and len(found[1]) > 1 else f"_{{{found[1]}}}"

    subscripted = re.sub(r"_([A-Za-z0-9]+(?:,[a-z])?)", subscript, unicode)
    return "".join(_SYMBOLS.get(character, character) for character in subscripted).strip()


def print_to(console: Console, tables: Sequence[Table]) -> None:
    """Draw the tables on a console of rich."""
    for table in tables:
        console.print(Text(table.title, style="bold"))
        drawn = [_rich(table, gap) for gap in (3, 2, 1)]  # on a narrow screen columns move closer
        unfolded = console.options.update(width=1000)
        fitting = [d for d in drawn if console.measure(d, options=unfolded).maximum <= console.width]
        console.print([*fitting, drawn[-1]][0])
        for note in table.notes:
            console.print(Text(note, style="dim"))
        console.print()


def _rich(table: Table, gap: int) -> RichTable:
    drawn = RichTable(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    texts = [[as_text(cell) for cell in row.cells] for row in table.rows]
    for i, heading in enumerate(table.columns):
        width = max([len(cells[i]) for cells in texts], default=0)
        drawn.add_column(
            Text(_fold(heading, max(width, 9)), style="dim"),
            justify="right" if table.is_numeric(i) else "left",
            vertical="bottom",
            overflow="fold",
            no_wrap=table.is_numeric(i),
            style="" if i else "cyan",
        )
    for row, (name, *others) in zip(table.rows, texts, strict=True):
        drawn.add_row(Text("  " * row.level + name), *map(Text, others), style="bold" if row.strong else "")
    return drawn


def _fold(heading: str, width: int) -> str:
    """A heading in lines of about that width, broken after spaces and underscores, so that numbers stand close.

    >>> _fold("std_vit_cifar predicted", 10)
    'std_vit_\\ncifar\\npredicted'
    """
    lines = [""]
    for word in re.findall(r"[^ _]+[ _]?", heading):
        if lines[-1] and len(lines[-1]) + len(word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)


def _markdown(table: Table) -> str:
    lines = [list(table.columns), ["---:" if table.is_numeric(i) else "---" for i in range(len(table.columns))]]
    for row in table.rows:
        cells = [as_text(cell).replace("|", "\\|") for cell in row.cells]
        cells = [f"**{cell}**" for cell in cells] if row.strong else cells
        lines.append(["&emsp;" * row.level + cells[0], *cells[1:]])
    body = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return "\n\n".join([f"**{table.title}**", body, *table.notes])


def _html(table: Table) -> str:
    """For notebooks; everything that is not ours is escaped."""
    aligned = ["right" if table.is_numeric(i) else "left" for i in range(len(table.columns))]
    lines = [_html_row("th", [(side, as_text(name)) for side, name in zip(aligned, table.columns, strict=True)])]
    for row in table.rows:
        texts = ["\u2003" * row.level + as_text(row.cells[0]), *map(as_text, row.cells[1:])]  # an em space
        lines.append(_html_row("th" if row.strong else "td", list(zip(aligned, texts, strict=True))))
    notes = [f"<div><small>{_escape(note)}</small></div>" for note in table.notes]
    return "\n".join([f"<b>{_escape(table.title)}</b>", "<table>", *lines, "</table>", *notes])


def _html_row(tag: str, cells: Sequence[tuple[str, str]]) -> str:
    inside = "".join(f'<{tag} style="text-align:{side}">{_escape(text)}</{tag}>' for side, text in cells)
    return f"<tr>{inside}</tr>"


def _escape(text: str) -> str:
    return html.escape(printable(text))


def _latex(table: Table) -> str:
    """A booktabs table, as the paper's."""
    lines = [" & ".join(map(as_latex, table.columns)) + r" \\", r"\midrule"]
    for row in table.rows:
        cells = [rf"\textbf{{{as_latex(cell)}}}" if row.strong else as_latex(cell) for cell in row.cells]
        lines.append(r"\quad " * row.level + " & ".join(cells) + r" \\")
    columns = "".join("r" if table.is_numeric(i) else "l" for i in range(len(table.columns)))
    caption = " ".join([f"{table.title}.", *table.notes])
    head = [r"\begin{table}[htbp]", r"\centering", rf"\caption{{{as_latex(caption)}}}", rf"\label{{tab:{table.name}}}"]
    tabular = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *lines, r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*head, *tabular, r"\end{table}"])


def _as_json(table: Table) -> dict[str, object]:
    rows = [dict(zip(table.columns, map(_plain, row.cells), strict=True)) for row in table.rows]
    return {"title": table.title, "rows": rows, **({"notes": table.notes} if table.notes else {})}


def _plain(cell: Cell) -> Cell:
    """JSON knows no NaN and no infinity."""
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def percent(value: float | None) -> str:
    """A fraction for people; a dash for one of nothing.

    >>> percent(0.8125), percent(None), percent(float("nan"))
    ('81.2 %', '–', '–')
    """
    return "–" if value is None or value != value else f"{100 * value:.1f} %"


def duration(seconds: float) -> str:
    """As h:mm:ss.

    >>> duration(3725.4)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
