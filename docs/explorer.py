"""A mkdocs hook: the explorer of the weights that come with the package, as a file of the site."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from tcpvit.inference import load_model
from tcpvit.inference.page import build_page, find_twin


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add explorer.html."""
    loaded = load_model("tcp_vit_cifar_plus")
    files.append(File.generated(config, "explorer.html", content=build_page(loaded, find_twin(loaded))))
    return files
