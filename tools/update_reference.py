"""Write the reference pages in docs/reference from the code.

    python tools/update_reference.py            # rewrite
    python tools/update_reference.py --check    # exit 1 where a page is stale or a name is bare

Pages: telemetry rows, the command line, the HTTP interface, settings, metrics, problem types, and
the modules of the packages. What is public and says nothing about itself is named, and is an error
in both modes.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
PACKAGES = {
    "calib": "records, labels, metrics, fits, scheduler, formats",
    "monitoring": "store, drift, recalibration, promotion, reports",
    "heads": "drafters, training, decoding, kernels (torch)",
    "client/dspark_calib_client": "what engines install",
}
METHODS = ("get", "put", "post", "delete", "patch")
HEAD = "<!-- Written by tools/update_reference.py; change the code instead. -->\n\n"

Missing = list[str]


def cell(text: object) -> str:
    """Text as the cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def table(header: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    """A Markdown table; nothing without rows."""
    if not rows:
        return ""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(cell(each) for each in line)} |" for line in lines) + "\n\n"


# Telemetry ------------------------------------------------------------------------------------

_FORMATS: list[tuple[object, ...]] = [
    ("Parquet, Arrow", "the columns below", "stated in the file"),
    ("JSON lines", "one row a line, an object of the columns below", "width of the first row"),
    ("`.pt` shards of SGLang", "`logits`, `prefix_mask`, perhaps `observed_mask`", "`--gamma`"),
]
_ROWS = """# Telemetry rows

One row is one block of one request. Positions are the drafted tokens, γ of them; neither the anchor
(the token before the block) nor the bonus token after it is one.

## Files

Every command that takes `FILE…` tells the format by its content. Files may be mixed, and quoted
patterns are expanded.

{formats}All of a shard is float32 [N, γ]; a mask holds ones up to n (`prefix_mask`) or up to ℓ
(`observed_mask`), zeros beyond. SGLang writes no `observed_mask`: every position then counts as
verified, which is [not always right](../engines/sglang.md#3-without-the-plugin). Reading them
takes torch, which the base installation leaves out.

The smallest useful JSON line, and the same rows as Parquet:

```
{"confidence_logits": [1.5, 0.25, -0.5], "verified": 3, "accepted": 1, "prompt": "p-17"}
```

```python
from calib.formats.arrow import write_parquet
from calib.records import AcceptanceRecords

columns = {
    "confidence_logits": [[1.5, 0.25, -0.5]],
    "verified": [3],
    "accepted": [1],
    "prompt": ["p-17"],
}
write_parquet(AcceptanceRecords.from_columns(3, columns), "rows.parquet")
```

Without `prompt` give `request` and `--split-by request`, or judge on other files (`--evaluate-on`):
rows of one prompt share their luck, so a fit is never judged on the prompts it was made on.

## Columns

"""


def rows(missing: Missing) -> str:
    """The columns of a row, and the files that hold them."""
    from calib.record_schema import COLUMNS

    missing += [f"column {column.name}" for column in COLUMNS if not column.doc]
    lines: list[tuple[object, ...]] = []
    for column in COLUMNS:
        choices = ", ".join(column.choices)
        kind = f"one of {choices}" if choices else column.kind.value
        shape = "γ values" if column.per_position else ""
        lines.append((f"`{column.name}`", column.presence.value, shape, kind, column.doc))
    page = _ROWS.replace("{formats}", table(("format", "holds", "γ"), _FORMATS))
    return page + table(("column", "", "", "a cell is", "meaning"), lines)


# The command line -----------------------------------------------------------------------------


def command_line(missing: Missing) -> str:
    """Every command with its arguments and options."""
    import typer

    from api.cli import app

    page = (
        "# Command line\n\nExit codes: 0 done, 1 refused by the data, 2 bad input. Commands with "
        "`--json` print one JSON document.\n\n"
    )
    return page + "".join(_commands(typer.main.get_command(app), "dspark-calib", missing))


def _commands(command: Any, path: str, missing: Missing) -> Iterator[str]:
    children: Mapping[str, Any] = getattr(command, "commands", {})
    if not command.help:
        missing.append(f"command {path}")
    if children:
        if " " in path:
            yield f"## {path}\n\n{command.help}\n\n"
        for name, child in children.items():
            yield from _commands(child, f"{path} {name}", missing)
        return
    text = " ".join((command.help or "").split())
    yield f"{'##' if path.count(' ') < 2 else '###'} {path}\n\n{text}\n\n"
    rows = []
    for parameter in command.params:
        if parameter.name == "help":
            continue
        words = getattr(parameter, "help", None)
        flags = [*parameter.opts, *parameter.secondary_opts]
        is_argument = parameter.param_type_name == "argument"
        name = (parameter.metavar or parameter.name.upper()) if is_argument else ", ".join(flags)
        if not words:
            missing.append(f"{path}: {name}")
        rows.append((f"`{name}`", words or "", _default(parameter)))
    yield table(("", "", "default"), rows)


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if value is None or value in (False, "", (), []) or callable(value):
        return ""
    return f"`{getattr(value, 'value', value)}`"


# The service ----------------------------------------------------------------------------------


def _openapi() -> dict[str, Any]:
    from api.app import create_app
    from api.settings import Settings

    # Nothing is opened before the application starts.
    document: dict[str, Any] = create_app(Settings(database_url="sqlite:///unused.db")).openapi()
    return document


def http(missing: Missing) -> str:
    """Every call with its parameters and answers."""
    document = _openapi()
    parts = [
        "# HTTP interface\n\nThe running service shows the same with schemas and examples at "
        "`/docs`, and as OpenAPI 3.1 at `/openapi.json`. Errors are "
        "[problems](problems.md) (RFC 9457).\n\n"
    ]
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                parts.append(_call(f"{method.upper()} {path}", item[method], missing))
    return "".join(parts)


def _call(name: str, operation: Mapping[str, Any], missing: Missing) -> str:
    said = operation.get("description") or ""
    if not said:
        missing.append(f"call {name}")
    rows = []
    for parameter in operation.get("parameters", ()):
        words = parameter.get("description") or parameter.get("schema", {}).get("description", "")
        if not words and parameter["in"] != "path":
            missing.append(f"{name}: {parameter['name']}")
        needed = "required" if parameter.get("required") else ""
        rows.append((f"`{parameter['name']}`", parameter["in"], words, needed))
    answers = [
        (code, answer["description"])
        for code, answer in sorted(operation["responses"].items())
        if code < "400"
    ]
    faults = [code for code in sorted(operation["responses"]) if code >= "400"]
    text = f"## {name}\n\n{said.strip()}\n\n"
    text += table(("parameter", "in", "", ""), rows) + table(("answer", ""), answers)
    return text + (f"Problems: {', '.join(faults)}.\n\n" if faults else "")


def settings(missing: Missing) -> str:
    """Every setting with its default."""
    from api.alert_settings import AlertReceiverSettings
    from api.settings import CONFIG_VARIABLE, ENVIRONMENT_PREFIX, Settings

    page = (
        "# Settings\n\nA flag of `dspark-calib serve` comes first, then the environment "
        f"(`{ENVIRONMENT_PREFIX}<NAME>` in capitals), then the TOML file that `{CONFIG_VARIABLE}` "
        "or `--config` names, then the default.\n\n"
    )
    page += _fields(Settings, missing)
    page += "## Receivers of alerts\n\nOne `[[alert_receivers]]` table each.\n\n"
    return page + _fields(AlertReceiverSettings, missing)


def _fields(model: Any, missing: Missing) -> str:
    rows = []
    for name, field in model.model_fields.items():
        if not field.description:
            missing.append(f"setting {name}")
        if field.default_factory is not None:
            default = "in the user's data directory"
        elif field.is_required():
            default = "required"
        else:
            default = "none" if field.default is None else f"`{field.default}`"
        rows.append((f"`{name}`", field.description or "", default))
    return table(("setting", "", "default"), rows)


def metrics(missing: Missing) -> str:
    """Every metric that /metrics shows."""
    from monitoring.metrics_catalogue import METRICS

    missing += [f"metric {spec.full_name}" for spec in METRICS if not spec.help]
    rows: list[tuple[object, ...]] = [
        (f"`{spec.full_name}`", spec.kind, ", ".join(spec.labels), spec.source, spec.help)
        for spec in METRICS
    ]
    return (
        "# Metrics\n\nSource `database`: every replica shows the same, aggregate with `max`. "
        "Source `process`: each replica shows its own, aggregate with `sum`.\n\n"
        + table(("metric", "kind", "labels", "source", ""), rows)
    )


def problems(missing: Missing) -> str:
    """Every problem type."""
    from api.problem_catalogue import CATALOGUE

    kinds = CATALOGUE.values() if isinstance(CATALOGUE, Mapping) else CATALOGUE
    missing += [f"problem {kind.slug}" for kind in kinds if not kind.meaning]
    rows: list[tuple[object, ...]] = [
        (f"`{kind.slug}`", kind.status, kind.title, kind.meaning) for kind in kinds
    ]
    return (
        "# Problem types\n\n`type` of every problem is `/problems/<slug>`; programs may switch on "
        "it.\n\n" + table(("slug", "status", "title", "meaning, and what to do"), rows)
    )


# Python ---------------------------------------------------------------------------------------


def python(missing: Missing) -> str:
    """Every public name of the packages, read from the source: nothing is imported."""
    parts = [
        "# Python modules\n\n`help(name)` says the rest: shapes, ranges, units and errors. "
        "`calib` is the library; of the other packages only modules and names are listed. "
        "[Its README](../../client/README.md) describes `dspark_calib_client`.\n\n"
    ]
    for package, words in PACKAGES.items():
        parts.append(f"## {Path(package).name}: {words}\n\n")
        for path in sorted((ROOT / package).rglob("*.py")):
            parts.append(_module(path, package, missing))
    return "".join(parts)


def _module(path: Path, package: str, missing: Missing) -> str:
    inside = path.relative_to(ROOT)
    hidden = any(part.startswith("_") for part in inside.parts) or "migrations" in inside.parts
    if hidden:
        return ""
    base = (ROOT / package).parent
    name = ".".join(path.relative_to(base).with_suffix("").parts)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = ast.get_docstring(tree)
    if not said:
        missing.append(f"module {name}")
    rows: list[tuple[object, ...]] = []
    for node in tree.body:
        is_public = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if not is_public or node.name.startswith("_") or node.name.endswith("_kernel"):
            continue
        words = ast.get_docstring(node)
        if not words:
            missing.append(f"{name}.{node.name}")
        rows.append((f"`{node.name}`", _sentence(words or "")))
    head = f"**`{name}`**: {_sentence(said or '')}\n\n"
    if package == "calib":
        return head + table(("", ""), rows)
    return head + (", ".join(str(row[0]) for row in rows) + "\n\n" if rows else "")


def _sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split()).rstrip(":")


# Pages ----------------------------------------------------------------------------------------

PAGES: Mapping[str, Callable[[Missing], str]] = {
    "rows.md": rows,
    "cli.md": command_line,
    "http.md": http,
    "settings.md": settings,
    "metrics.md": metrics,
    "problems.md": problems,
    "python.md": python,
}


def main(arguments: list[str]) -> int:
    """Rewrite or check all pages; returns the exit code."""
    is_check = "--check" in arguments
    missing: Missing = []
    stale = []
    for name, write in PAGES.items():
        path = FOLDER / name
        title, _, rest = write(missing).partition("\n")
        text = f"{title}\n\n{HEAD}{rest.strip()}\n"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not is_check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    for name in missing:
        print(f"undocumented: {name}")
    for name in stale:
        print(f"docs/reference/{name}: {'out of date' if is_check else 'updated'}")
    return 1 if missing or (stale and is_check) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
