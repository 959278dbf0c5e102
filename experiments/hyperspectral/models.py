"""The models of the study, the settings that each may choose from, and what is changed one at a time.

Words are KEY=VALUE: a field of `Training`, `options.FIELD` of a preset, `power` of its standardised coefficients, or an
argument of scikit-learn. Every model has the same number of trials; the first trial of a peer is as published, but for
its number of epochs (100 or more, here 80 on random pixels and 20 on disjoint fields) and its window.
"""

from __future__ import annotations

Words = tuple[str, ...]

VITS = ("tcp_scene", "tcp_scene_stem", "tcp_scene_shuffle", "std_scene", "std_scene_small")
_plain = ("turn=false", "noise=0", "weight_decay=0")
_ours = ("turn=true", "noise=0.3", "schedule=cycle")
MODELS: dict[str, Words] = {
    **{name: (f"model={name}",) for name in VITS},
    "svm-bands": ("model=svm-bands",),
    "svm-dct": ("model=svm-dct",),
    "svm-mean": ("model=svm-mean",),
    "svm-mean-3": ("model=svm-mean", "window=3"),
    "forest": ("model=forest", "n_estimators=200"),
    "ssftt": ("model=ssftt",),
    "hybridsn": ("model=hybridsn",),
    "spectralformer": ("model=spectralformer",),
}
_vit: tuple[Words, ...] = (
    ("lr=2e-3", "options.kept=32", "epochs=20"),
    ("lr=4e-3", "options.kept=32", "epochs=10"),
    ("lr=2e-3", "options.kept=16", "epochs=10"),
    ("lr=4e-3", "options.kept=16", "epochs=20"),
)
FLATTENED = ("flatten=1",)
# Between fields, else as chosen: a model and what is changed. On validation fields dropout did best among the first
# levers on three splits, windows of 3×3 with longer training on ten, for one network and for the mean of five, and then
# the mean of a network for 9×9 and one for 3×3.
VARIANTS: dict[str, tuple[str, Words]] = {
    f"{model}-{variant}": (model, words)
    for variant, words in {
        "plain": ("flatten=0",),
        "dropout": ("options.drop_rate=0.2",),
        "3": ("window=3", "epochs=80"),
        "3-members": ("window=3", "epochs=80", "members=5"),
        "windows": ("windows=[9, 3]", "epochs=80"),
    }.items()
    for model in ("tcp_scene", "std_scene")
}
AS_W = ("tcp_scene_stem", "tcp_scene_shuffle")  # have no trials of their own and take what W chose
_svm: tuple[Words, ...] = tuple(("C=100", f"kept={k}", f"scaled={s}") for s in ("true", "false") for k in (20, 32))


def _peer(lr: float, *published: str) -> tuple[Words, ...]:
    """As published; with turned and noisy windows; at half the rate; and trained as our models are."""
    base = (f"lr={lr:g}", *published, *_plain, "epochs=20")
    return base, (*base, "turn=true", "noise=0.3"), (*base, f"lr={lr / 2:g}"), (*base, "lr=2e-3", *_ours)


_trials: dict[str, tuple[Words, ...]] = {
    **dict.fromkeys(VITS, _vit),
    "svm-bands": tuple((f"C={c}", f"gamma={g}") for c in (10, 100) for g in (0.005, 0.02)),
    "svm-dct": _svm,
    "svm-mean": _svm,
    "svm-mean-3": _svm,
    "forest": tuple((f"max_features={f}", f"min_samples_leaf={n}") for f in ("sqrt", "0.2") for n in (1, 3)),
    "ssftt": _peer(1e-3, "schedule=constant"),
    "hybridsn": _peer(1e-3, "schedule=constant", "batch=256"),
    "spectralformer": _peer(5e-4, "schedule=steps"),
}


LONGER = {"epochs=20": "epochs=80", "epochs=10": "epochs=40"}  # random pixels are like those that train


def trials(model: str, kind: str) -> tuple[Words, ...]:
    """What a model may choose from. Between fields our models and the dense ones see flattened windows: see `LEVERS`.

    >>> trials("std_scene", "disjoint")[0], trials("std_scene", "random")[0]
    (('lr=2e-3', 'options.kept=32', 'epochs=20', 'flatten=1'), ('lr=2e-3', 'options.kept=32', 'epochs=80'))
    """
    if kind == "random":
        return tuple(tuple(LONGER.get(word, word) for word in words) for words in _trials[model])
    words = FLATTENED if model in VITS else ()
    return tuple((*each, *words) for each in _trials[model])


_first = ("lr=2e-3", "epochs=25")
_chosen = ("lr=4e-3", "options.kept=16", "epochs=20", *FLATTENED)  # by W between fields
LEVERS: dict[str, Words] = {
    f"{name}.{lever}": (f"model={name}", *words)
    for lever, words in {
        "base": _first,
        "power-0": (*_first, "power=0"),
        "light": (*_first, "brightness=0.2", "offset=0.3"),
        "flatten": (*_first, *FLATTENED),
        "flatten-light": (*_first, *FLATTENED, "brightness=0.2", "offset=0.3"),
        "chosen": _chosen,
        "chosen-start": (*_chosen, "start=4"),
        "chosen-average": (*_chosen, "average=true"),
        "chosen-noise": (*_chosen, "noise=1"),
        "chosen-dropout": (*_chosen, "options.drop_rate=0.2"),
        "chosen-blend": (*_chosen, "blend=0.5"),
        "chosen-power-half": (*_chosen, "power=0.5"),
        "chosen-long": (*_chosen, "epochs=80"),
        "chosen-window-3": (*_chosen, "window=3"),
        "chosen-window-1": (*_chosen, "window=1", "options.patch_size=1"),
        "chosen-centre": (*_chosen, "centre=true"),
        "chosen-members": (*_chosen, "members=5"),
        "chosen-3-long": (*_chosen, "window=3", "epochs=80"),
        "chosen-3-members": (*_chosen, "window=3", "members=5"),
        "chosen-3-long-members": (*_chosen, "window=3", "epochs=80", "members=5"),
        "chosen-windows": (*_chosen, "windows=[9, 3]", "epochs=80"),
    }.items()
    for name in ("tcp_scene", "std_scene")
}
# Tried last, and what they are compared with: on ten splits.
_last = (
    "dropout",
    "long",
    "window-3",
    "window-1",
    "centre",
    "members",
    "3-long",
    "3-members",
    "3-long-members",
    "windows",
)
LEVERS_OF_TEN = ("chosen", *(f"chosen-{lever}" for lever in _last))
ABLATIONS: dict[str, Words] = {
    "kept-8": ("options.kept=8",),
    "kept-16": ("options.kept=16",),
    "kept-32": ("options.kept=32",),
    "kept-64": ("options.kept=64",),
    "pca": ("options.band_basis=pca",),
    "random-axes": ("options.band_basis=random",),
    "learned": ("options.band_basis=learned",),
    "not-shared": ("options.coupling=[mix, norm]",),
    "not-mixed": ("options.coupling=[shared, norm]",),
    "own-norms": ("options.coupling=[shared, mix]",),
    "power-0": ("power=0",),
    "power-1": ("power=1",),
    "start": ("start=4",),
}
