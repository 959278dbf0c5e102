"""The command line: a table of verbs, each a plain function in a file of its own.

Only the module of the verb that was asked for is imported. Its signature becomes the usage (positional parameters are
arguments, keyword-only ones are options) and its docstring the help. CONTRIBUTING.md says how a verb is added.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import io
import logging
import os
import platform
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer

import tcpvit
from tcpvit.cli.program import program, tell

ROOT = Path(__file__).parents[1]  # of the package
# verb -> (where its function lives, what `tcpvit --help` says: the first line of the function's docstring)
VERBS: dict[str, tuple[str, str]] = {
    "demo": ("tcpvit.cli.demo:demo", "Train a Std-ViT and its TCP twin within minutes, and compare them."),
    "train": ("tcpvit.cli.train:train", "Train a model by a recipe."),
    "eval": ("tcpvit.cli.eval:measure", "Measure a trained model on a set."),
    "data": ("tcpvit.cli.data:data", "List, download, verify and look at the data sets."),
    "predict": ("tcpvit.cli.predict:predict", "Label images, or the pixels of a scene, with a trained model."),
    "scene": ("tcpvit.cli.scene:scene", "Look into a scene of many bands, or split its pixels."),
    "serve": ("tcpvit.cli.serve:serve", "Serve a trained classifier over HTTP."),
    "explain": ("tcpvit.cli.explain:explain", "Show what the slices of a model do with images."),
    "page": (
        "tcpvit.cli.page:page",
        "Write one HTML file that runs a TCP-ViT in a browser and shows what its slices do.",
    ),
    "compare": (
        "tcpvit.cli.compare:compare",
        "Train a Std model and its TCP twin on the same data and seed, and compare them.",
    ),
    "reproduce": (
        "tcpvit.cli.reproduce:reproduce",
        "Run an experiment of the paper: training, its table beside the paper's numbers, and its figures.",
    ),
    "tensorize": (
        "tcpvit.cli.tensorize:tensorize",
        "Convert a model to its c-product counterpart, or make a trained one smaller.",
    ),
    "export": (
        "tcpvit.cli.export:export",
        "Write a trained model as an ONNX, OpenVINO or torch.export file, and compare the two.",
    ),
    "models": ("tcpvit.cli.models:models", "List the models, with their size and the ratio to their dense twin."),
    "analyze": ("tcpvit.cli.analyze:analyze", "Parameters, FLOPs and memory of models, by formula and by count."),
    "bench": (
        "tcpvit.cli.bench:bench",
        "Time of models, forward and forward+backward, beside what their FLOPs promise.",
    ),
}


WHERE_TO_START = (
    "Start with `tcpvit demo`, or with your own images: `tcpvit train --data folder:PATH`. "
    "`tcpvit VERB --help` shows examples to copy."
)


def main(args: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code; errors are one sentence on stderr."""
    args = list(sys.argv[1:] if args is None else args) or ["--help"]
    # Read when torch is imported: threads that wait sleep instead of spinning. Where other programs run too, small
    # models then train ten times as fast.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):  # names that the encoding of a terminal or pipe does not have are escaped
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with _log_shown():
            code = _run(args)
    except KeyboardInterrupt:  # typer sees only those inside a verb
        code = 130
    except Exception as error:
        if not _is_expected(error) or os.environ.get("TCPVIT_TRACEBACK"):
            raise
        tell(_sentence(error, args))
        return getattr(error, "exit_code", 1)
    if code == 130:
        tell("interrupted")
    return code


@contextmanager
def _log_shown() -> Iterator[None]:
    """Say what the library logs and warns of, as errors are said."""
    handler = logging.Handler()
    handler.emit = lambda record: tell(record.getMessage())  # type: ignore[method-assign]
    log, show_others = logging.getLogger("tcpvit"), warnings.showwarning

    def show(message: Warning | str, category: type[Warning], filename: str, *place: Any, **named: Any) -> None:
        ours = issubclass(category, UserWarning) and Path(filename).is_relative_to(ROOT)
        tell(str(message)) if ours else show_others(message, category, filename, *place, **named)

    log.addHandler(handler)
    warnings.showwarning = show
    try:
        yield
    finally:
        log.removeHandler(handler)
        warnings.showwarning = show_others


def load(target: str) -> Callable[..., Any]:
    """The function that "module:function" names.

    >>> load("os.path:basename")("a/b")
    'b'
    """
    module, _, function = target.partition(":")
    return getattr(importlib.import_module(module), function)


def command(function: Callable[..., Any]) -> Callable[..., None]:
    """`function` as typer takes it: `Args:` of the docstring are the help of its arguments and options."""
    about = arguments_of(function)
    hints = get_type_hints(function, include_extras=True)
    parameters = [
        p.replace(annotation=_annotated(p, hints[p.name], about.get(p.name, "")))
        for p in inspect.signature(function).parameters.values()
    ]

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)  # what it returns is for callers from Python
        sys.stdout.flush()  # a pipe closed by `| head` is noticed here, where typer ends quietly

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def arguments_of(function: Callable[..., Any]) -> dict[str, str]:
    """What `Args:` of the docstring says about each parameter."""
    section = _section(inspect.getdoc(function) or "", "Args")
    found = re.findall(r"^(\w+)[^:\n]*: (.*(?:\n .*)*)", section, flags=re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text) for name, text in found}


def help_of(function: Callable[..., Any]) -> str:
    """The docstring as Markdown: without `Args:`, the examples as a block to copy from."""
    doc = inspect.getdoc(function) or ""
    examples = _section(doc, "Examples")
    prose = re.sub(r"^(Args|Examples|Returns|Raises):\n((?: .*)?(?:\n|$))*", "", doc, flags=re.MULTILINE)
    block = f"Examples:\n\n```text\n{examples}\n```"
    return f"{prose.strip()}\n\n{block}" if examples else prose.strip()


def _run(args: list[str]) -> int:
    app = typer.Typer(
        help=f"{tcpvit.__doc__}\n\n{WHERE_TO_START}",
        context_settings={"help_option_names": ["-h", "--help"]},
        add_completion=False,
        rich_markup_mode="markdown",
    )
    app.callback()(_options)
    for name, (target, summary) in VERBS.items():
        if name == args[0]:
            function = load(target)
            app.command(name, help=help_of(function))(command(function))
        else:
            app.command(name, help=summary)(lambda: None)
    # Without its standalone mode typer returns the code of an early exit, and None after a verb.
    return typer.main.get_command(app).main(args, prog_name="tcpvit", standalone_mode=False) or 0


def _print_version(asked: bool) -> None:
    if asked:
        import torch

        print(f"tcpvit {tcpvit.__version__} (torch {torch.__version__}, Python {platform.python_version()})")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the versions and exit.")
    ] = False,
) -> None:
    """The options of `tcpvit` itself."""


def _annotated(parameter: inspect.Parameter, hint: Any, about: str) -> Any:
    """The hint with typer's description of the parameter; its author may have given the names of the option."""
    if get_origin(hint) is Annotated:
        hint.__metadata__[0].help = hint.__metadata__[0].help or about
        return hint
    if parameter.kind is not parameter.KEYWORD_ONLY:
        return Annotated[hint, typer.Argument(help=about)]
    name = "--" + parameter.name.replace("_", "-")
    flag = [name] if hint is bool and parameter.default is False else []  # no --no-json
    return Annotated[hint, typer.Option(*flag, help=about)]


def _section(doc: str, title: str) -> str:
    """The dedented body of a section of a docstring.

    >>> _section("Do.\\n\\nArgs:\\n    x: a number\\n      or two\\n\\nMore.", "Args")
    'x: a number\\n  or two'
    """
    found = re.search(rf"^{title}:\n((?:(?: .*)?(?:\n|$))+)", doc + "\n", flags=re.MULTILINE)
    return textwrap.dedent(found[1]).strip() if found else ""


def _is_expected(error: Exception) -> bool:
    """What a user can cause and correct, misuse included; anything else is a fault of ours and shows its traceback."""
    if hasattr(error, "format_message"):  # typer's usage errors
        return True
    from torch.linalg import LinAlgError  # here, so that the help does not wait for torch

    return isinstance(error, (ValueError, LinAlgError, OSError, ImportError))


def _sentence(error: Exception, args: list[str]) -> str:
    if hasattr(error, "format_message"):
        usage = f"{program()} {args[0]} --help" if args[0] in VERBS else f"{program()} --help"
        said = error.format_message().replace("Value error, ", "").rstrip(".")
        return f"{said}{_as_change(error, args)} (see {usage})"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{error}{_as_change(error, args)}" or type(error).__name__


def _as_change(error: Exception, args: list[str]) -> str:
    """How to change the recipe, if its key was given as an option or without --set."""
    option: str = getattr(error, "option_name", None) or ""
    changes = [
        change
        for before, change in pairwise(args)
        if re.fullmatch(r"[a-z_]+\.[a-z_.]+=.*", change) and not before.startswith("-") and change in str(error)
    ]
    if not option and not changes:
        return ""
    if args[0] not in VERBS or "set" not in inspect.signature(load(VERBS[args[0]][0])).parameters:
        return ""
    if changes:
        return f"; to change the recipe write --set {changes[0]}"
    from tcpvit.cli.shortcuts import key_for  # torch is loaded by now

    key = key_for(option)
    return f", but it is a key of the recipe: --set {key}=VALUE" if key else ""
