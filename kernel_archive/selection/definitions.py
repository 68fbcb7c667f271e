"""Split definitions: the files in ``splits/``, read and checked.

A definition is a TOML file. Which keys it has follows from what the rows of its split are (``kind``
in :data:`~kernel_archive.splits.SPLITS`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import msgspec
import polars as pl

from kernel_archive.archive.labels import FLAGS
from kernel_archive.bins import Scheme, assign_bins
from kernel_archive.errors import RecipeError, UsageError, printable
from kernel_archive.gpus import canonical_gpu
from kernel_archive.ids import canonical_json, sha256_hex
from kernel_archive.problems import HELD_OUT_PROBLEMS, normalise_problem
from kernel_archive.program_text import LANGUAGE_ORDER
from kernel_archive.selection.selected import CANONICAL, ChosenRows, count_values
from kernel_archive.selection.tables import ArchiveTables, has_flag
from kernel_archive.splits import SPLITS, Kind, SplitSpec, split_of
from kernel_archive.storage import content_path
from kernel_archive.untrusted import misfit, read_toml


class SplitNotMadeError(UsageError):
    """Raised when an archive's kernels allow no split, or several without saying which."""


def _one_of(names: Iterable[str]) -> msgspec.Meta:
    return msgspec.Meta(pattern=f"^({'|'.join(names)})$")


# Whole numbers of a definition: at most more than any archive has rows, few enough for every reader
# of JSON.
_Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Flag = Annotated[str, _one_of(flag.name for flag in FLAGS)]
_Language = Annotated[str, _one_of(LANGUAGE_ORDER)]
_Cutoff = Annotated[float, msgspec.Meta(gt=1, le=1e300)]
_AtLeastOne: Final = msgspec.Meta(min_length=1)
#: Role of the searches that evaluation splits are made of.
HELD_OUT: Final = "held_out"
#: Lower ends of the strata of |log2 ratio| that pairs of training programs are spread over.
STRATA: Final = (0.0, 0.1, 0.5, 1.0, 2.0)
#: A problem with kernels in fewer bins says too little about telling them apart.
LEAST_BINS: Final = 3


class Definition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every definition states.

    Attributes:
        scheme: bin scheme of the labels.
        exclude_flags: audit flags that keep a kernel (of a pair: either kernel) out.
        natural: only programs of builders whose recipe says ``natural``.
        builders: only programs of these builders; of every one when empty.
        without_builders: no programs of these builders.
    """

    #: What all splits of a kind have in common, which their facts record, too.
    common: ClassVar[Mapping[str, Any]] = {}

    scheme: Scheme
    exclude_flags: list[_Flag]
    natural: bool = False
    builders: list[_Text] = []
    without_builders: list[_Text] = []

    @property
    def parameters(self) -> dict[str, Any]:
        """What the facts of a split record of its definition."""
        return {**msgspec.to_builtins(self), **self.common}

    def allows_builder(self, tables: ArchiveTables) -> pl.Expr:
        """Tell whether the programs of a search's builder count."""
        builder, natural = pl.col("builder"), tables.archive.manifest.natural_builders
        allowed = builder.is_in(self.builders) | (not self.builders)
        allowed &= builder.is_in(natural) | (not self.natural)
        return allowed & ~builder.is_in(self.without_builders)


class KernelDefinition(Definition, frozen=True, kw_only=True):
    """Which kernels may be asked about; the fields are explained in ``splits/eval.toml``.

    Attributes:
        tasks: problem ids, or ``held_out`` for all problems that are wholly held out.
        gpu: preferred GPU, canonical name.
        selection_key: text before the ids in the hash that orders candidates.
        languages: languages of the candidates; all when empty.
        near_copy: similarity from which two programs are near copies
            (:mod:`kernel_archive.selection.similarity`), of which one is taken; a near copy of a
            training program is left out.
        measured: measurements that a kernel has at least.
    """

    common: ClassVar = {"role": HELD_OUT}

    tasks: list[_Text] | Literal["held_out"]
    gpu: str
    selection_key: _Text
    languages: list[_Language] = []
    near_copy: Annotated[float, msgspec.Meta(gt=0, le=1)]
    measured: _Positive = 1

    @property
    def problems(self) -> list[str]:
        """The problem ids, sorted."""
        return sorted(HELD_OUT_PROBLEMS if isinstance(self.tasks, str) else set(self.tasks))

    def __post_init__(self) -> None:  # refuse names that are not canonical
        names = [("tasks", task, normalise_problem(task)) for task in self.problems]
        for field, name, canonical in [*names, ("gpu", self.gpu, canonical_gpu(self.gpu))]:
            if name != canonical:
                value = printable(repr(name))
                raise ValueError(f"{field} can't be {value}: write {canonical!r}")


class EvalDefinition(KernelDefinition, frozen=True, kw_only=True):
    """Which kernels enter an evaluation split.

    Attributes:
        cap: kernels per task and bin, at most.
    """

    cap: _Positive


class CloseDefinition(KernelDefinition, frozen=True, kw_only=True):
    """Which two kernels make a close pair; the fields are explained in ``splits/eval_close.toml``.

    Attributes:
        closest: least ratio of the two speedups, the faster over the slower.
        farthest: largest ratio.
        standard_errors: combined relative standard errors that the ratio exceeds 1 by, at least.
        pairs: pairs in all, at most.
        pairs_per_program: pairs that a program is in, at most.
    """

    closest: _Cutoff
    farthest: _Cutoff
    standard_errors: Annotated[float, msgspec.Meta(ge=0, le=1000)]
    pairs: _Positive
    pairs_per_program: _Positive


class TransferDefinition(Definition, frozen=True, kw_only=True):
    """Which programs are asked about on another GPU (``splits/eval_transfer.toml``).

    Attributes:
        selection_key: text before the ids in the hash that orders candidates.
        cap: rows per problem and ordered pair of GPUs, at most.
    """

    common: ClassVar = {"role": HELD_OUT}

    selection_key: _Text
    cap: _Positive


class DiscoveryDefinition(Definition, frozen=True, kw_only=True):
    """Which parent-child edges become discovery pairs.

    The fields are explained in ``splits/discovery.toml``.

    Attributes:
        methods: generation methods of the searches.
        roles: roles of the searches; training is never one of them.
        measured: measurements that a child has at least (a parent may be the reference, which is
            timed beside every program).
    """

    common: ClassVar = {"unfinished": True, "cutoffs": list(SPLITS["discovery"].cutoffs)}

    methods: Annotated[list[_Text], _AtLeastOne]
    roles: Annotated[list[Literal["held_out", "archive"]], _AtLeastOne]
    measured: _Positive = 1


class TrainDefinition(Definition, frozen=True, kw_only=True):
    """Which pairs a trainer gets; the fields are explained in ``splits/train.toml``.

    Attributes:
        pairs_per_task: pairs of two programs of one task, at most.
        seed: of the sample.
    """

    common: ClassVar = {
        "role": "training",
        "priority": ["seed", "parent_edit", "pair"],
        "strata": list(STRATA),
    }

    pairs_per_task: _Natural
    seed: _Natural


_Struct = TypeVar("_Struct", bound=Definition)
_TYPES: Final[dict[Kind, type[Definition]]] = {
    "eval": EvalDefinition,
    "validity": KernelDefinition,
    "close": CloseDefinition,
    "discovery": DiscoveryDefinition,
    "train": TrainDefinition,
}
#: Field -> the word for it in the name of a variant; all other fields are told by a digest.
_WORDS: Final = {"cap": "cap", "pairs": "pairs", "pairs_per_task": "pairs", "seed": "seed"}


def _definition_type(split: SplitSpec) -> type[Definition]:
    return TransferDefinition if split.is_transfer else _TYPES[split.kind]


def _converted(fields: Mapping[str, Any], kind: type[_Struct], place: str) -> _Struct:
    """Make the definition with these fields; a wrong one is an error that names ``place``."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        message, field = misfit(error)
        if " can't be " in message:
            field = message.partition(" ")[0]
        name = (field or "").partition("[")[0]
        value = printable(repr(fields[name])) if name in fields else None
        fix = f"The fields are: {', '.join(sorted(kind.__struct_fields__))}"
        raise RecipeError.of(
            code="bad-definition", message=message, file=place, field=field, value=value, fix=fix
        ) from None


def load_definition(name: str, path: str | Path | None = None) -> Definition:
    """Read the definition of a split (or its table): the shipped one, or the file of another.

    Raises:
        RecipeError: the file is not there, or holds no definition.
        UsageError: there is no such split.

    >>> load_definition("eval").cap
    10
    """
    split = split_of(name)
    file = Path(path) if path is not None else content_path("splits") / f"{split.name}.toml"
    fail = partial(RecipeError.of, code="bad-definition", file=str(file))
    fix = "Copy one of splits/*.toml and change it"
    fields = read_toml(file, fail, "there is no such split definition", fix)
    return _converted(fields, _definition_type(split), str(file))


def with_changes(definition: _Struct, **changes: Any) -> _Struct:
    """Replace fields of a definition, and check it again; ``None`` leaves a field as it is.

    Raises:
        RecipeError: a value is wrong.

    >>> with_changes(load_definition("eval"), cap=20, scheme=None).cap
    20
    """
    fields = {field: value for field, value in changes.items() if value is not None}
    return _converted({**msgspec.structs.asdict(definition), **fields}, type(definition), "given")


def recorded_definition(split: SplitSpec, parameters: Mapping[str, Any]) -> Definition:
    """Rebuild the definition that selected a split, from the parameters in its facts.

    Raises:
        RecipeError: the parameters are not those of a definition.
    """
    kind = _definition_type(split)
    fields = {name: value for name, value in parameters.items() if name not in kind.common}
    if "preferred_gpu" in fields:
        # The GPU that was chosen stands under "gpu", the definition's own one beside it.
        fields["gpu"] = fields.pop("preferred_gpu")
    return _converted(fields, kind, "manifest.json")


def canonical_definition(split: SplitSpec, tables: ArchiveTables) -> Definition:
    """Make the canonical definition of an archive.

    A user's own archive has other problems than the shipped one, so that the shipped
    definitions would select nothing of it. Its splits follow from them with the problems,
    languages, methods and GPU that it has, and from what its recipe says (``[eval]``).
    """
    shipped = load_definition(split.name)
    evaluation = tables.archive.manifest.eval_rules
    if evaluation is not None and split.name == "discovery":
        methods = sorted(set(tables.searches["generation_method"])) or ["none"]
        return with_changes(shipped, natural=False, methods=methods)
    if evaluation is None or split.name != "eval":
        return shipped
    languages = evaluation.get("languages") or []
    kernels = tables.held_out.filter(
        tables.of_searches(pl.col("role") == HELD_OUT),
        pl.col("language").is_in(languages) | (not languages),
        ~has_flag(["unfit"]),
    )
    gpu = canonical_gpu(evaluation.get("gpu") or "")
    per_gpu = count_values(kernels["gpu"])
    if gpu not in per_gpu:
        gpu = max(per_gpu, key=lambda name: per_gpu[name], default=gpu)
    if (tasks := evaluation.get("tasks")) is not None:
        tasks = _named(tasks, tables)
    else:
        tasks = _in_bins(kernels.filter(pl.col("gpu") == gpu), evaluation.get("bins"))
    return with_changes(
        shipped,
        natural=False,
        languages=languages,
        tasks=tasks,
        exclude_flags=["unfit"],  # which only readings of its own recipes give
        measured=1,
        gpu=gpu,
        cap=evaluation.get("cap"),
    )


def choose_gpu(present: Mapping[str, int], preferred: str, asked: str | None = None) -> str | None:
    """Choose the one GPU of a split, of those that qualifying kernels were measured on.

    The one that was asked for; else the preferred one when present; else the only one; ``None``
    when there is none at all.

    Raises:
        UsageError: the named GPU has no qualifying kernel.
        SplitNotMadeError: there are several, and none of them is preferred or named.

    >>> choose_gpu({"H200": 9}, "A100-80GB"), choose_gpu({"H200": 9, "A100-80GB": 1}, "A100-80GB")
    ('H200', 'A100-80GB')
    """
    gpu = preferred if asked is None else canonical_gpu(asked)
    if gpu in present:
        return gpu
    names = ", ".join(map(printable, sorted(present))) or "none"
    if asked is not None:
        message = f"no held-out kernel of these tasks was measured on GPU {printable(gpu)}"
        raise UsageError(f"{message}. GPUs with such kernels: {names}")
    if len(present) > 1:
        message = f"held-out kernels were measured on several GPUs ({names}) and none of them is"
        fix = "Choose one with build-eval --gpu"
        raise SplitNotMadeError(f"{message} {printable(preferred)}. {fix}")
    return next(iter(present), None)


def _in_bins(kernels: pl.DataFrame, least: int | None) -> list[str]:
    """List the problems with kernels in enough bins; all where none has :data:`LEAST_BINS`."""
    bins = kernels.select("problem", bin=pl.Series(assign_bins(kernels["speedup"].to_numpy())))
    counts = dict(bins.group_by("problem").agg(pl.col("bin").n_unique()).sort("problem").rows())
    enough = [problem for problem, n in counts.items() if n >= (least or LEAST_BINS)]
    return enough or ([] if least else list(counts))


def _named(tasks: Sequence[str], tables: ArchiveTables) -> list[str]:
    """Find the problems that a recipe names; one of our names may be kept as ``BUILDER.NAME``."""
    present = set(tables.read("kernels", ["problem"])["problem"])
    names: list[str] = []
    for task in map(normalise_problem, tasks):
        kept = [name for name in present if name.endswith(f".{task}")]
        names += kept if task not in present and len(kept) == 1 else [task]
    return names


def variant_name(
    split: SplitSpec, rule: Definition, standard: Definition, choice: ChosenRows
) -> str:
    """Name a selection by how its definition, or its GPU, differs from the canonical one.

    ``eval-cap20-h200`` has another cap and GPU; eight hex digits at the end stand for any other
    field.
    """
    changed = {f for f in rule.__struct_fields__ if getattr(rule, f) != getattr(standard, f)}
    gpu, canonical = "", None
    if isinstance(standard, KernelDefinition):
        with suppress(SplitNotMadeError):
            canonical = choose_gpu(choice.gpus, standard.gpu)
        if choice.gpu != canonical:
            gpu = re.sub(r"[^a-z0-9]+", "", (choice.gpu or "none").lower())
    if not changed and not gpu:
        return CANONICAL
    parts = [f"{word}{getattr(rule, f)}" for f, word in _WORDS.items() if f in changed]
    parts += [gpu, rule.scheme if "scheme" in changed else ""]
    if changed - {*_WORDS, "scheme"}:
        parts.append(sha256_hex(canonical_json(rule.parameters))[:8])
    return "-".join([split.name, *filter(None, parts)])
