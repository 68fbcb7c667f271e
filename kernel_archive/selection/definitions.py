"""Split definitions: ``splits/eval.toml``, ``discovery.toml`` and ``train.toml``, read and checked.

A definition is a TOML file. Which keys it has follows from what the rows of its split are (``kind`` in
:data:`~kernel_archive.splits.SPLITS`), so that a further evaluation split is one more file and one more entry there.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeAlias, TypeVar

import msgspec

from kernel_archive.archive.labels import FLAGS
from kernel_archive.bins import Scheme  # noqa: TC001 - msgspec needs the type at run time
from kernel_archive.errors import Finding, RecipeError, printable
from kernel_archive.gpus import canonical_gpu
from kernel_archive.ids import canonical_json, sha256_hex
from kernel_archive.problems import HELD_OUT_PROBLEMS, normalise_problem
from kernel_archive.program_text import LANGUAGE_ORDER
from kernel_archive.selection.selected import CANONICAL
from kernel_archive.splits import split_of
from kernel_archive.storage import content_path
from kernel_archive.untrusted import misfit, read_toml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kernel_archive.selection.tables import ArchiveTables
    from kernel_archive.splits import Kind, Split

#: |log2| that no ratio of two measured times reaches: a nanosecond against five centuries.
_LARGEST_LOG2: Final = 64

# Whole numbers of a definition: at most more than any archive has rows, few enough for every reader of JSON.
_Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
#: A problem with kernels in fewer bins says too little about telling them apart.
LEAST_BINS: Final = 3
#: Field, what is wrong with it, its value, the way out.
_Fault: TypeAlias = tuple[str, str, str, str]


def _unknown(field: str, what: str, names: Sequence[str], known: Sequence[str]) -> Iterator[_Fault]:
    for i, name in enumerate(names):
        if name not in known:
            yield f"{field}[{i}]", f"unknown {what}", name, f"One of: {', '.join(known)}"


class Definition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every definition states.

    Attributes:
        scheme: bin scheme of the labels.
        exclude_flags: audit flags that keep a kernel (of a pair: either kernel) out.
        version: of the definition; what an earlier one selected stays in ``splits/retired/``.
        natural: only programs of builders whose recipe says ``natural``.
        builders: only programs of these builders; of every one when empty.
    """

    scheme: Scheme
    exclude_flags: list[str]
    version: _Positive = 1
    natural: bool = False
    builders: list[_Text] = []

    #: Field -> how the name of a variant says it; all other fields are told by a digest.
    told: ClassVar[dict[str, str]] = {"scheme": "{}"}

    def faults(self) -> Iterator[_Fault]:
        """What the types of the fields can't say."""
        yield from _unknown("exclude_flags", "audit flag", self.exclude_flags, [flag.name for flag in FLAGS])


class EvalDefinition(Definition, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which kernels enter an evaluation split; the fields are explained in ``splits/eval.toml``.

    Attributes:
        tasks: problem ids, or ``held_out`` for all problems that are wholly held out.
        gpu: preferred GPU, canonical name.
        role: role of the searches that the kernels come from.
        cap: kernels per task and bin, at most.
        selection_key: text before the kernel id in the hash that orders a cell.
        languages: languages of the candidates; all when empty.
        near_copy: similarity from which two programs are near copies (:mod:`kernel_archive.selection.similarity`): a cell
            takes one of them, and a program that near to a training program of its problem is left out. ``None``: no rule.
        measured: kernels with so many measurements go first.
        level: correlation of a quantity of the text, by its ranks, with the speedup, by its ranks and as it is, that is let be
            within a task, either way; above it rows are exchanged for others of their cell
            (:mod:`kernel_archive.selection.level`). ``None``: no rule.
        balance: what the rows of a bin (``language``) and of a cell (``search``) are spread over, the first before the
            second.
    """

    tasks: Annotated[list[_Text], msgspec.Meta(min_length=1)] | Literal["held_out"]
    gpu: _Text
    role: Literal["held_out"]
    cap: _Positive
    selection_key: _Text
    languages: list[_Text] = []
    near_copy: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    measured: _Positive = 1
    balance: list[Literal["language", "search"]] = []
    level: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None

    told: ClassVar[dict[str, str]] = {"cap": "cap{}", "gpu": "", "scheme": "{}"}

    @property
    def problems(self) -> list[str]:
        """The problem ids, sorted."""
        return sorted(HELD_OUT_PROBLEMS if isinstance(self.tasks, str) else self.tasks)

    def faults(self) -> Iterator[_Fault]:
        """What the types of the fields can't say."""
        yield from super().faults()
        for i, task in enumerate(self.tasks if isinstance(self.tasks, list) else ()):
            if normalise_problem(task) != task:
                yield f"tasks[{i}]", "not the canonical name of a problem", task, f"Write {normalise_problem(task)!r}"
        if len(set(self.problems)) != len(self.problems):
            yield "tasks", "a task stands twice", ", ".join(self.problems), "Name each once"
        yield from _unknown("languages", "language", self.languages, LANGUAGE_ORDER)
        if canonical_gpu(self.gpu) != self.gpu:
            yield "gpu", "not the canonical name of a GPU", self.gpu, f"Write {canonical_gpu(self.gpu)!r}"


class OwnEvalDefinition(EvalDefinition, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which kernels enter the evaluation split of an archive of one's own.

    Attributes:
        tasks: problem ids, or ``every`` for all with kernels in enough bins.
        bins: how many bins are enough; 0 for three, or any number where no problem has kernels in three.
        gpu: the GPU; where it is empty, the one with the most kernels.
    """

    tasks: list[str] | Literal["every"]  # type: ignore[assignment]
    bins: Annotated[int, msgspec.Meta(ge=0, le=8)]
    gpu: str

    @property
    def problems(self) -> list[str]:
        """The problems that are named, sorted; none where every one may be asked about."""
        return [] if isinstance(self.tasks, str) else sorted(self.tasks)


class DiscoveryDefinition(Definition, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which parent-child edges become discovery pairs; the fields are explained in ``splits/discovery.toml``.

    Attributes:
        methods: generation methods of the searches.
        roles: roles of the searches; training is never one of them.
        unfinished: also searches that were stopped before their own end.
        cutoffs: values of g from which an edge counts as a discovery.
    """

    methods: Annotated[list[_Text], msgspec.Meta(min_length=1)]
    roles: Annotated[list[Literal["held_out", "archive"]], msgspec.Meta(min_length=1)]
    unfinished: bool
    cutoffs: Annotated[list[Annotated[float, msgspec.Meta(gt=1)]], msgspec.Meta(min_length=1)]

    def faults(self) -> Iterator[_Fault]:
        """What the types of the fields can't say."""
        yield from super().faults()
        names = [f"{cutoff:g}" for cutoff in self.cutoffs]
        for i, cutoff in enumerate(self.cutoffs):
            if not math.isfinite(cutoff):
                yield f"cutoffs[{i}]", "a cutoff must be a finite number", repr(cutoff), "For example [1.25, 1.5, 2.0]"
            elif names[i] in names[:i]:
                yield f"cutoffs[{i}]", "a cutoff stands twice (six digits count)", repr(cutoff), "Name each once"


class TrainDefinition(Definition, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which pairs a trainer gets; the fields are explained in ``splits/train.toml``.

    Attributes:
        role: role of the searches.
        priority: kinds of pairs, first wins.
        pairs_per_task: pairs of two programs of one task, at most.
        strata: lower ends of the strata of |log2 ratio|, ascending from 0.
        seed: of the sample.
    """

    role: Literal["training"]
    priority: list[Literal["seed", "parent_edit", "pair"]]
    pairs_per_task: _Natural
    strata: Annotated[list[Annotated[float, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)]
    seed: _Natural

    told: ClassVar[dict[str, str]] = {"pairs_per_task": "pairs{}", "seed": "seed{}", "scheme": "{}"}

    def faults(self) -> Iterator[_Fault]:
        """What the types of the fields can't say."""
        yield from super().faults()
        example = "For example [0.0, 0.1, 0.5, 1.0, 2.0]"
        for i, low in enumerate(self.strata):
            if not low < _LARGEST_LOG2:
                message = f"a stratum must begin under {_LARGEST_LOG2}: no ratio of measured speedups is as far from 1"
                yield f"strata[{i}]", message, repr(low), example
        if self.strata[0] != 0 or any(a >= b for a, b in pairwise(self.strata)):
            yield "strata", "the strata must begin at 0 and ascend", repr(self.strata), example
        if sorted(self.priority) != sorted(("seed", "parent_edit", "pair")):
            yield "priority", "must name each kind once", ", ".join(self.priority), "seed, parent_edit, pair"


_Struct = TypeVar("_Struct", bound=Definition)
_TYPES: Final[dict[Kind, type[Definition]]] = {
    "eval": EvalDefinition,
    "discovery": DiscoveryDefinition,
    "train": TrainDefinition,
}


def _kind(split: Split, data: Mapping[str, Any]) -> type[Definition]:
    """What a definition with these keys is: ``bins`` is of an archive of one's own."""
    return OwnEvalDefinition if split.kind == "eval" and "bins" in data else _TYPES[split.kind]


def _converted(data: Mapping[str, Any], kind: type[_Struct], place: str) -> _Struct:
    """The definition that a mapping states.

    Raises:
        RecipeError: a field is unknown or missing, or a value is wrong; all faults that the types can't say are listed.
    """
    try:
        definition = msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        message, field = misfit(error)
        stated = (field or "").split("[")[0]
        raise RecipeError.of(
            code="bad-definition",
            message=message,
            file=place,
            field=field,
            value=printable(repr(data[stated])) if stated in data else None,
            fix=f"The fields are: {', '.join(sorted(kind.__struct_fields__))}",
        ) from None
    findings = [
        Finding(code="bad-definition", message=message, file=place, field=field, value=printable(value), fix=fix)
        for field, message, value, fix in definition.faults()
    ]
    if findings:
        raise RecipeError.from_findings(findings)
    return definition


def load_definition(name: str, path: str | Path | None = None) -> Definition:
    """Read a split definition.

    Args:
        name: name of the split, or of its table.
        path: a definition of one's own, or the name of a retired one; the shipped, canonical one when not given.

    Raises:
        RecipeError: the file is missing or not TOML, a field is unknown or missing, or a value is wrong.
        UsageError: there is no such split.

    >>> load_definition("eval").cap
    10
    """
    split = split_of(name)
    file = Path(path) if path is not None else content_path("splits") / f"{split.name}.toml"
    if path is not None and str(path) in (retired := retired_definitions(split)):
        file = retired[str(path)]
    place = str(file)
    known = ", ".join(retired_definitions(split))
    fix = "Copy one of splits/*.toml and change it" + (f", or name a retired one: {known}" if known else "")
    fail = partial(RecipeError.of, code="bad-definition", file=place)
    data = read_toml(file, fail, "there is no such split definition", fix)
    return _converted(data, _kind(split, data), place)


def retired_definitions(split: Split) -> dict[str, Path]:
    """Name -> file of the retired definitions of a split: what it was in earlier versions of the data."""
    return {path.stem: path for path in sorted(content_path("splits").glob(f"retired/{split.name}-[0-9]*.toml"))}


def with_changes(definition: _Struct, **changes: Any) -> _Struct:
    """The definition with fields replaced and checked again; ``None`` leaves a field as it is.

    Raises:
        RecipeError: a value is wrong.

    >>> with_changes(load_definition("eval"), cap=20, scheme=None).cap
    20
    """
    wanted = {field: value for field, value in changes.items() if value is not None}
    return _converted({**msgspec.structs.asdict(definition), **wanted}, type(definition), "given")


def recorded_definition(split: Split, parameters: Mapping[str, Any]) -> Definition:
    """The definition by which a split was selected, from the parameters that its facts record.

    Raises:
        RecipeError: the parameters are not those of a definition.
    """
    stated = dict(parameters)
    kind = _kind(split, stated)
    if "preferred_gpu" in stated:
        # The GPU that was chosen stands under "gpu", the definition's own one beside it.
        stated["gpu"] = stated["preferred_gpu"]
    return _converted({f: stated[f] for f in kind.__struct_fields__ if f in stated}, kind, "manifest.json")


def canonical_definition(split: Split, tables: ArchiveTables) -> Definition:
    """The definition that is the canonical one for an archive: the shipped one, or that of an archive of one's own.

    An archive with a name of its own has other problems than the shipped one, so that the shipped definitions would select
    nothing of it. Its splits follow from them with the problems, languages, methods and GPU that it has, and from what its
    recipe says (``[eval]``).
    """
    shipped = load_definition(split.name)
    stated = tables.evaluation
    if stated is None:
        return shipped
    if split.kind == "discovery":
        methods = sorted(set(tables.searches["generation_method"].to_pylist())) or ["none"]
        return with_changes(shipped, natural=False, methods=methods)
    if split.name != "eval":
        return shipped
    present = set(tables.read("kernels", ["problem"])["problem"].unique().to_pylist())
    wanted = {key: value for key, value in stated.items() if key in ("cap", "languages", "gpu", "tasks", "bins")}
    if "gpu" in wanted:
        wanted["gpu"] = canonical_gpu(wanted["gpu"])
    if "tasks" in wanted:
        wanted["tasks"] = [_present(normalise_problem(task), present) for task in wanted["tasks"]]
    own = {
        **msgspec.structs.asdict(shipped),
        "natural": False,
        "languages": [],
        "tasks": "every",
        "bins": 0,
        "exclude_flags": ["unfit"],  # which only readings of its own recipes give
        "level": None,
        "gpu": "",
        **wanted,
    }
    return _converted(own, OwnEvalDefinition, "given")


def _present(task: str, present: set[str]) -> str:
    """The problem that a recipe means: also one that was renamed because it is called like one of ours."""
    renamed = sorted(name for name in present if name.endswith(f".{task}"))
    return renamed[0] if task not in present and len(renamed) == 1 else task


def variant_name(split: Split, rule: _Struct, standard: _Struct, *, gpu: str = "") -> str:
    """``canonical`` for the canonical definition, a retired one's name for exactly that, or what differs as a name.

    ``gpu`` is what to say of the GPU, where it is not the canonical choice.
    """
    changed = {f for f in rule.__struct_fields__ if getattr(rule, f) != getattr(standard, f)}
    if not changed and not gpu:
        return CANONICAL
    if not gpu:
        for name in retired_definitions(split):
            if load_definition(split.name, name) == rule:
                return name
    told = {f: text.format(getattr(rule, f)) for f, text in rule.told.items() if f in changed} | {"gpu": gpu}
    parts = [told.get(f, "") for f in rule.told]
    if changed - rule.told.keys():
        parts.append(sha256_hex(canonical_json(rule))[:8])
    return "-".join([split.name, *filter(None, parts)])
