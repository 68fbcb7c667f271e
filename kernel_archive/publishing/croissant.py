"""Croissant metadata (``croissant.json``): every shard with its digest, every column with its meaning.

Written as plain JSON-LD after the Croissant 1.0 specification (MLCommons), so that a build needs no further library;
the tests validate and load it with ``mlcroissant``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from kernel_archive.publishing.facts import splits_of
from kernel_archive.schema import CASE, TABLES

if TYPE_CHECKING:
    from kernel_archive.archive.open import Archive
    from kernel_archive.schema import Column

_PARQUET: Final = "application/x-parquet"
_CONTEXT: Final[dict[str, Any]] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{
        name: f"cr:{name}"
        for name in (
            "citeAs", "column", "equivalentProperty", "extract", "field", "fileProperty", "fileObject", "fileSet",
            "format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet",
            "references", "regex", "repeated", "replace",
            "samplingRate", "separator", "source", "subField", "transform",
        )
    },
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "sc": "https://schema.org/",
}  # fmt: skip


def _data_type(type_: pa.DataType) -> str:
    kinds = {"Boolean": pa.types.is_boolean, "Integer": pa.types.is_integer, "Float": pa.types.is_floating}
    kinds["DateTime"] = pa.types.is_timestamp
    return "sc:" + next((name for name, is_one in kinds.items() if is_one(type_)), "Text")


def _node(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"@type": f"cr:{kind}", "@id": name, "name": name, **more}


def _field(record_set: str, column: Column, files: dict[str, Any]) -> dict[str, Any]:
    name = f"{record_set}/{column.name}"
    source = {**files, "extract": {"column": column.name}}
    made = _node("Field", name, description=column.doc)
    kind = column.type
    if pa.types.is_list(kind):
        made["repeated"] = True
        kind = kind.value_type
    if not pa.types.is_struct(kind):
        return {**made, "dataType": _data_type(kind), "source": source}
    made["subField"] = [
        _node(
            "Field",
            f"{name}/{part.name}",
            dataType=_data_type(part.type),
            source={**source, "transform": {"jsonPath": part.name}},
        )
        for part in CASE
    ]
    return made


def croissant(archive: Archive, name: str, title: str, n_kernels: int) -> bytes:
    """The Croissant file of an archive: a record set per table and split that has rows (``kernels_train``), out of its shards."""
    manifest = archive.manifest
    distribution: list[dict[str, Any]] = []
    record_sets: list[dict[str, Any]] = []
    for table in archive.tables:
        spec = TABLES[table]
        for split, shards, rows in splits_of(archive, table):
            if not rows:
                continue
            record_set = f"{table}_{split}"
            objects = [
                _node(
                    "FileObject",
                    shard.path.removeprefix("data/").removesuffix(".parquet"),
                    description=f"{shard.rows} rows of {table}/{split}.",
                    contentSize=f"{shard.bytes} B",
                    contentUrl=shard.path,
                    encodingFormat=_PARQUET,
                    sha256=shard.sha256,
                )
                for shard in shards
            ]
            distribution += objects
            files: dict[str, Any] = {"fileObject": {"@id": objects[0]["@id"]}}
            if len(shards) > 1:
                # Each shard is named above with its digest; a file set reads them together, from beside this file.
                together = f"{record_set}_files"
                files = {"fileSet": {"@id": together}}
                includes = f"data/{table}/{split}-*.parquet"
                distribution.append(_node("FileSet", together, encodingFormat=_PARQUET, includes=includes))
            record_sets.append(
                _node(
                    "RecordSet",
                    record_set,
                    description=f"{spec.title}.",
                    key={"@id": f"{record_set}/{spec.key}"},
                    field=[_field(record_set, column, files) for column in spec.columns],
                )
            )
    licences = sorted({f"https://spdx.org/licenses/{b['licence']}.html" for b in manifest.builders})
    made = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": name.replace("/", "_"),
        "alternateName": title,
        "description": (
            f"{n_kernels} GPU kernels with measured speedups over a reference, their programs and the searches that "
            "found them."
        ),
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "citeAs": f"{name}, version {manifest.version}, {manifest.logical_digest}",
        "license": licences[0] if len(licences) == 1 else licences,
        "url": f"https://huggingface.co/datasets/{name}",
        "version": manifest.version,
        "distribution": distribution,
        "recordSet": record_sets,
    }
    return msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n"
