"""What the classification study found, in plain words: every number in them is of its records."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from experiments.classification.labels import (
    FINE,
    LABELS,
    NO_TRANSFORM,
    PAPER_EPOCHS,
    PLUS,
    PRESETS,
    QUOTED,
    RECIPES,
    TARGETS,
    TRANSFORMS,
)
from experiments.classification.tables import (
    PAIR,
    Effect,
    Runs,
    ahead,
    best_ways,
    by_model,
    chance,
    changes,
    full_set,
    group,
    mean_top1,
    seed_deviation,
    short_runs,
    standard_error,
)
from tcpvit.compare.intervals import (
    between,
    interval,
    leads,
    named_seeds,
    on_common_seeds,
    signed,
    verdict,
)
from tcpvit.compare.study import Record

NO_DIFFERENCE = "no difference that one run can show"


def in_short(records: list[Record], best: Runs) -> Iterable[str]:
    """The answers, before the tables that they come from; `best` are the finalists, each at its best."""
    lines = [
        *_on_targets(best),
        *_on_fast_learning(records),
        *_on_size(records),
        *_on_changes(records),
        *_on_the_protocol(records),
        *_with_care(records),
        *_on_the_full_set(records),
        *_on_the_proxy(records),
    ]
    if lines:
        yield "## In short"
        yield ""
        yield from (f"- {line}" for line in lines)
        yield ""


def _on_targets(runs: Runs) -> Iterable[str]:
    for (model, to), (_, needed) in TARGETS.items():
        found = ahead(runs, model, to)
        if found:
            one, base = runs[model][0], LABELS[to].partition(":")[0]
            size = f"{one['parameters']:,} against {runs[to][0]['parameters']:,} parameters"
            yield (
                f"`{PRESETS[model]}` against {base}, {size}, after {one['epochs']} epochs: {signed(fmean(found))} "
                f"points (asked: {signed(needed)}): {verdict(found, needed)}."
            )


def _on_fast_learning(records: list[Record]) -> Iterable[str]:
    """Whether the lead of S over the dense ViTs lasts."""
    short, long = best_ways(short_runs(records)), by_model(group(records, "final"))
    early, late = ({to: ahead(runs, FINE, to) for to in ("std-28", "std")} for runs in (short, long))
    if not all((*early.values(), *late.values())):
        return
    told = [
        f"{signed(fmean(found['std-28']))} points to the dense ViT of its size and {signed(fmean(found['std']))} to "
        f"Std-ViT after {runs[FINE][0]['epochs']} epochs ({runs[FINE][0]['measured_on']}, {named_seeds(runs[FINE])})"
        for found, runs in ((early, short), (late, long))
    ]
    lasts = fmean(late["std-28"]) >= fmean(early["std-28"])
    yield (
        f"S, whose {short[FINE][0]['parameters']:,} parameters work for four slices each: {'; '.join(told)}. "
        f"{'Its lead lasts.' if lasts else 'It learns faster, and its lead shrinks as the others catch up.'}"
    )


def _on_size(records: list[Record]) -> Iterable[str]:
    """What models of like size have in common after the finals, whatever they are made of."""
    runs = list(by_model(group(records, "final")).values())
    sizes = [[found for found in runs if found[0]["parameters"] // 100_000 == size] for size in (0, 1)]
    if any(len(found) < 2 for found in sizes):
        return
    told = []
    for found in sizes:
        numbers = sorted(each[0]["parameters"] for each in found)
        losses, tops = (
            sorted(fmean(run[key] for run in each) for each in found) for key in ("train_loss", "top1_last")
        )
        told.append(
            f"the {len(found)} finalists of {numbers[0]:,} to {numbers[-1]:,} parameters end at train losses of "
            f"{losses[0]:.2f} to {losses[-1]:.2f} and {100 * tops[0]:.1f} to {100 * tops[-1]:.1f} %"
        )
    yield f"After {runs[0][0]['epochs']} epochs {'; '.join(told)}: size tells more than structure."


def _on_changes(records: list[Record]) -> Iterable[str]:
    """What matters in our small models, and whether it is the DCT."""
    short = short_runs(records)
    for model in (PLUS, FINE):
        effects = changes(short, model)
        if len(effects) < 2:  # nothing to sort out
            continue
        shows = chance(effects, images_of(short), seed_deviation(records))
        found = sorted_out(effects, shows)
        rest = len(found.pop(NO_DIFFERENCE, []))
        told = "".join(f" {said}: {'; '.join(chosen)}." for said, chosen in found.items())
        others = f" {f'The other {rest}' if told else 'all'}: {NO_DIFFERENCE}." if rest else ""
        yield f"Of {len(effects)} changes to {LABELS[model]},{told}{others}"
        yield from _on_transforms({what: 100 * (after - before) for what, before, after in effects}, shows)


def _on_transforms(gains: dict[str, float], shows: float) -> Iterable[str]:
    """Does the DCT itself matter?

    >>> gains = {NO_TRANSFORM: -5.3} | dict.fromkeys(TRANSFORMS, 0.5)
    >>> next(iter(_on_transforms(gains, shows=2.3))).rpartition(": ")[2]
    'that there is a transform matters, not which one.'
    """
    if not {NO_TRANSFORM, *TRANSFORMS} <= set(gains):
        return
    others = ", ".join(f"{signed(gains[what])} with {said}" for what, said in TRANSFORMS.items())
    needed, alike = gains[NO_TRANSFORM] <= -shows, all(abs(gains[what]) < shows for what in TRANSFORMS)
    if alike:
        answer = "that there is a transform matters, not which one" if needed else "none of this shows in one run"
    else:
        answer = "which transform it is matters"
    yield (
        f"The DCT itself, in points against it: {signed(gains[NO_TRANSFORM])} with no transform at all, {others}: "
        f"{answer}."
    )


def sorted_out(effects: list[Effect], shows: float) -> dict[str, list[str]]:
    """Changes by what they do, where that is more than chance may make.

    >>> sorted_out([("slices that meet", 0.5, 0.6), ("a shuffle", 0.6, 0.59)], shows=2.0)
    {'what helps': ['slices that meet (+10.0)'], 'no difference that one run can show': ['a shuffle (−1.0)']}
    """
    gains = [(f"{what} ({signed(100 * (after - before))})", 100 * (after - before)) for what, before, after in effects]
    found = {
        "what helps": [said for said, gain in gains if gain >= shows],
        "what hurts": [said for said, gain in gains if gain <= -shows],
        NO_DIFFERENCE: [said for said, gain in gains if abs(gain) < shows],
    }
    return {said: chosen for said, chosen in found.items() if chosen}


def with_time(early: Runs, late: Runs) -> Iterable[str]:
    """How our leads change with the length of the training, slices at one rate, over seeds that all four runs have."""
    found = []
    for model, to in (*TARGETS, (FINE, "std-28"), (FINE, "std")):
        pair = {name: early[name] for name in (model, to) if name in early}
        later = {f"{name} later": late.get(runs[0]["name"], []) for name, runs in pair.items()}
        runs = on_common_seeds(pair | later)
        before, after = ahead(runs, model, to), ahead(runs, f"{model} later", f"{to} later")
        if before and after:
            names = f"{LABELS[pair[model][0]['name']]} against {LABELS[to].partition(':')[0]}"
            found.append(f"{names}: {signed(fmean(before))}, then {signed(fmean(after))} points")
    if found:
        epochs = [next(iter(runs.values()))[0]["epochs"] for runs in (early, late)]
        yield f"**With longer training**, {epochs[0]} and {epochs[1]} epochs on the same seeds: {'; '.join(found)}."
        yield ""


# ---------------------------------------------------------------------------------------------------- the paper


def _protocol(records: list[Record], *parts: str) -> list[Runs]:
    """The paper's two models in these parts, over the seeds that all have; none unless all were trained as long."""
    found = {(part, name): runs for part in parts for name, runs in by_model(group(records, part)).items()}
    found = {way: runs for way, runs in found.items() if runs[0]["epochs"] == PAPER_EPOCHS}
    runs = on_common_seeds({" ".join(way): of_way for way, of_way in found.items()})
    whole = [{name: runs.get(f"{part} {name}", []) for name in PAIR} for part in parts]
    return whole if all(of_model for part in whole for of_model in part.values()) else []


def _on_the_protocol(records: list[Record]) -> Iterable[str]:
    """Which of the paper's conclusions our runs of its protocol share."""
    for runs in _protocol(records, "paper"):
        best, last, train, test = (
            {name: fmean(run[key] for run in found) for name, found in runs.items()}
            for key in ("top1_best", "top1_last", "train_loss", "test_loss")
        )
        quoted = {name: said / 100 for name, said in zip(PAIR, QUOTED["cifar10"], strict=True)}
        at_best = leads(runs["tcp"], runs["std"], "top1_best")
        sure = f", 95 % interval {between(interval(at_best))}" if len(at_best) > 1 else ""
        overfits = "overfits, as the paper says" if test["std"] > 2 * train["std"] else "does not overfit"
        yield (
            f"With the paper's own protocol TCP-ViT is {_told(best['tcp'], best['std'])} Std-ViT at the best "
            f"epoch{sure}, {_told(last['tcp'], last['std'])} it at the last ({_chance(runs['tcp'])}); in the paper it "
            f"is {_told(quoted['tcp'], quoted['std'])} it. Std-ViT {overfits}: it ends at a train loss of "
            f"{train['std']:.2f} and a test loss of {test['std']:.2f}, TCP-ViT at {train['tcp']:.2f} and "
            f"{test['tcp']:.2f}. Our Std-ViT is {_told(best['std'], quoted['std'])} the paper's, our TCP-ViT "
            f"{_told(best['tcp'], quoted['tcp'])} the paper's."
        )


def _with_care(records: list[Record]) -> Iterable[str]:
    """Whether the order of the paper's two models is that of a recipe with care, too."""
    both = _protocol(records, "paper", "tuned")
    if not both:
        return
    paper, tuned = both
    best, last = ({name: fmean(run[key] for run in tuned[name]) for name in PAIR} for key in ("top1_best", "top1_last"))
    gains = {name: fmean(leads(tuned[name], paper[name], "top1_best")) for name in PAIR}
    found = [100 * (tops["tcp"] - tops["std"]) for tops in (best, last)]
    yield (
        f"With the tuned recipe on the same images, each model at its own rate, TCP-ViT is "
        f"{_told(best['tcp'], best['std'])} Std-ViT at the best epoch, {_told(last['tcp'], last['std'])} it at the "
        f"last ({_chance(tuned['tcp'])}): against the paper's recipe Std-ViT gains {signed(gains['std'])} points at "
        f"the best epoch and TCP-ViT {signed(gains['tcp'])}. {_order(found, 2 * _error(tuned['tcp']))}"
    )


def _order(found: list[float], shows: float) -> str:
    """What becomes of the paper's order, from TCP-ViT's leads in points at the best and the last epoch.

    >>> _order([2.0, 1.0], 3), _order([-4.0, -5.0], 3)
    ("TCP-ViT's lead stays.", "The paper's order of the two turns round.")
    >>> _order([-4.0, -1.0], 3)
    "TCP-ViT's lead is gone; whether the order turns round is not sure, one of the two is within chance."
    """
    if min(found) >= 0:
        return "TCP-ViT's lead stays."
    if max(found) >= 0:
        return "Which of the two leads depends on the epoch."
    if max(found) <= -shows:
        return "The paper's order of the two turns round."
    within = "one of the two is" if min(found) <= -shows else "both are"
    return f"TCP-ViT's lead is gone; whether the order turns round is not sure, {within} within chance."


def _on_the_full_set(records: list[Record]) -> Iterable[str]:
    """Whether Std-ViT is ahead on all of CIFAR-10, as the paper says."""
    runs = full_set(records)
    if runs:
        one, quoted = runs["tcp"][0], (said / 100 for said in reversed(QUOTED["full"]))
        same = "the same order" if mean_top1(runs["tcp"]) < mean_top1(runs["std"]) else "another order"
        yield (
            f"On full CIFAR-10 the paper's TCP-ViT is {_told(*quoted)} its Std-ViT after 200 epochs; here it is "
            f"{_told(*(mean_top1(runs[name]) for name in ('tcp', 'std')))} it after {one['epochs']} (recipe "
            f"{one['recipe']}, lr {one['lr']:g}, {named_seeds(runs['tcp'])}): {same}."
        )


def _on_the_proxy(records: list[Record]) -> Iterable[str]:
    """Whether a high rate without warm-up alone can make the lead that the paper finds on SVHN."""
    runs = by_model(group(records, "proxy"))
    by_recipe = {name: ahead(runs, f"tcp-{name}", f"std-{name}") for name in RECIPES}
    if not all(by_recipe.values()):
        return
    found = {name: fmean(points) for name, points in by_recipe.items()}
    std, warm = (100 * mean_top1(runs[name]) for name in ("std-paper", "std-paper-warm"))
    quoted, one = QUOTED["svhn"][1] - QUOTED["svhn"][0], runs["tcp-tuned"][0]
    enough = found["paper"] >= quoted and found["paper"] - found["paper-warm"] >= 2 * _error(runs["tcp-tuned"])
    makes = "makes" if enough else "does not make"
    told = "; ".join(f"{signed(found[name])} with {said}" for name, said in RECIPES.items())
    yield (
        f"SVHN's proxy, {one['epochs']} epochs of {one['train_images']:,} images, TCP-ViT against Std-ViT in points: "
        f"{told} ({_chance(runs['tcp-tuned'])}). Here a rate of 0.01 without warm-up {makes}"
        f" a difference as large as the paper's {quoted:.1f} points on SVHN: Std-ViT ends at {std:.1f} % with it, "
        f"where chance is 10 %, and at {warm:.1f} % after a warm-up.{_on_the_other_set(records)}"
    )


def _on_the_other_set(records: list[Record]) -> str:
    """What the same recipe does on CIFAR-10, lest a failure on one set be taken for a rule."""
    for runs in _protocol(records, "paper"):
        top1 = 100 * fmean(run["top1_best"] for run in runs["std"])
        return f" That is no rule: on CIFAR-10 the same recipe brings it to {top1:.1f} % in {PAPER_EPOCHS} epochs."
    return ""


# ---------------------------------------------------------------------------------------------------- phrases


def images_of(records: list[Record]) -> int:
    """How many images measure runs that were made alike."""
    return int(records[0]["measured_images"])


def _error(runs: list[Record]) -> float:
    return standard_error(mean_top1(runs), images_of(runs))


def _chance(runs: list[Record]) -> str:
    """By which seeds and images, and what the latter leave to chance."""
    return f"{named_seeds(runs)}; {images_of(runs):,} images make a standard error of {_error(runs):.1f} points"


def _told(mine: float, theirs: float) -> str:
    """Two accuracies in words.

    >>> _told(0.61, 0.58), _told(0.58, 0.61)
    ('3.0 points ahead of', '3.0 points behind')
    """
    return f"{abs(100 * (mine - theirs)):.1f} points {'ahead of' if mine >= theirs else 'behind'}"
