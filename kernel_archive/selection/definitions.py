"""Split definitions: the files in ``splits/``, read and checked.

A definition is a TOML file. Which keys it has follows from what is asked about the rows of its
split; ``keys.toml`` says what each key means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import msgspec
import polars as pl

from kernel_archive.archive.labels import FLAGS
from kernel_archive.bins import Scheme
from kernel_archive.errors import RecipeError, printable
from kernel_archive.gpus import canonical_gpu
from kernel_archive.problems import HELD_OUT_PROBLEMS, normalise_problem
from kernel_archive.program_text import LANGUAGE_ORDER
from kernel_archive.selection.tables import ArchiveTables, is_listed
from kernel_archive.splits import SPLITS, SplitSpec, split_of
from kernel_archive.storage import content_path
from kernel_archive.untrusted import misfit, read_toml


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


class Definition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every definition states."""

    #: Parameters that every split of this kind has, recorded with those of the file.
    fixed_parameters: ClassVar[Mapping[str, Any]] = {}

    scheme: Scheme
    exclude_flags: list[_Flag]
    natural: bool = False
    builders: list[_Text] = []
    without_builders: list[_Text] = []

    @property
    def parameters(self) -> dict[str, Any]:
        """What the facts of a split record of its definition."""
        return {**msgspec.to_builtins(self), **self.fixed_parameters}

    def allows_builder(self, tables: ArchiveTables) -> pl.Expr:
        """Tell of rows of ``searches`` whether the programs of their builder count."""
        builder, natural = pl.col("builder"), tables.archive.manifest.natural_builders
        allowed = is_listed("builder", self.builders)
        allowed &= builder.is_in(natural) | (not self.natural)
        return allowed & ~builder.is_in(self.without_builders)


class CandidateDefinition(Definition, frozen=True, kw_only=True):
    """Which held-out programs of one GPU may be asked about."""

    fixed_parameters: ClassVar = {"role": HELD_OUT}

    tasks: list[_Text] | Literal["held_out"]
    gpu: str
    selection_key: _Text
    languages: list[_Language] = []
    near_copy: Annotated[float, msgspec.Meta(gt=0, le=1)]
    min_measurements: _Positive = msgspec.field(default=1, name="measured")

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


class ValidityDefinition(CandidateDefinition, frozen=True, kw_only=True):
    """Which programs are asked whether they pass."""


class EvalDefinition(CandidateDefinition, frozen=True, kw_only=True):
    """Which kernels enter an evaluation split."""

    cap: _Positive


class CloseDefinition(CandidateDefinition, frozen=True, kw_only=True):
    """Which two kernels make a close pair."""

    closest: _Cutoff
    farthest: _Cutoff
    standard_errors: Annotated[float, msgspec.Meta(ge=0, le=1000)]
    pairs: _Positive
    pairs_per_program: _Positive


class TransferDefinition(Definition, frozen=True, kw_only=True):
    """Which programs are asked about on another GPU."""

    fixed_parameters: ClassVar = {"role": HELD_OUT}

    selection_key: _Text
    cap: _Positive


class DiscoveryDefinition(Definition, frozen=True, kw_only=True):
    """Which parent-child edges become discovery pairs."""

    fixed_parameters: ClassVar = {"unfinished": True, "cutoffs": list(SPLITS["discovery"].cutoffs)}

    methods: Annotated[list[_Text], _AtLeastOne]
    roles: Annotated[list[Literal["held_out", "archive"]], _AtLeastOne]
    min_measurements: _Positive = msgspec.field(default=1, name="measured")


class TrainDefinition(Definition, frozen=True, kw_only=True):
    """Which pairs a trainer gets."""

    fixed_parameters: ClassVar = {
        "role": "training",
        "priority": ["seed", "parent_edit", "pair"],
        "strata": list(STRATA),
    }

    pairs_per_task: _Natural
    seed: _Natural


_AnyDefinition = TypeVar("_AnyDefinition", bound=Definition)
#: What is asked about the rows of a split -> its definition; nothing is about training pairs.
_DEFINITION_TYPES: Final[dict[str, type[Definition]]] = {
    "forecast": EvalDefinition,
    "validity": ValidityDefinition,
    "close": CloseDefinition,
    "transfer": TransferDefinition,
    "discovery": DiscoveryDefinition,
    "": TrainDefinition,
}


def _converted(fields: Mapping[str, Any], kind: type[_AnyDefinition], place: str) -> _AnyDefinition:
    """Make the definition with these fields; a wrong one is an error that names ``place``."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        message, field = misfit(error)
        if " can't be " in message:
            field = message.partition(" ")[0]
        name = (field or "").partition("[")[0]
        value = printable(repr(fields[name])) if name in fields else None
        fix = f"The fields are: {', '.join(sorted(kind.__struct_encode_fields__))}"
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
    return _converted(fields, _DEFINITION_TYPES[split.ask], str(file))


def with_changes(definition: _AnyDefinition, **changes: Any) -> _AnyDefinition:
    """Replace fields of a definition, and check it again; ``None`` leaves a field as it is.

    Fields are named as in the file: ``measured``, not ``min_measurements``.

    Raises:
        RecipeError: a value is wrong.

    >>> with_changes(load_definition("eval"), cap=20, scheme=None).cap
    20
    """
    fields = {field: value for field, value in changes.items() if value is not None}
    return _converted({**msgspec.to_builtins(definition), **fields}, type(definition), "given")


def recorded_definition(split: SplitSpec, parameters: Mapping[str, Any]) -> Definition:
    """Rebuild the definition that selected a split, from the parameters in its facts.

    Raises:
        RecipeError: the parameters are not those of a definition.
    """
    kind = _DEFINITION_TYPES[split.ask]
    fields = {key: value for key, value in parameters.items() if key not in kind.fixed_parameters}
    if "preferred_gpu" in fields:
        # The GPU that was chosen stands under "gpu", the definition's own one beside it.
        fields["gpu"] = fields.pop("preferred_gpu")
    return _converted(fields, kind, "manifest.json")
