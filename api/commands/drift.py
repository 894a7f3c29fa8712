"""``dspark-calib drift``: whether a drafter of a running service is still calibrated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from api.service_calls import (
    DEFAULT_URL,
    ServiceCalls,
    ServiceToken,
    ServiceUrl,
    service_exit_codes,
)

__all__ = ["drift", "drift_lines"]

_WORDS = {
    "collecting": "too few rows since it was published to say",
    "calibrated": "no evidence against it",
    "warning": "evidence at the warn level; nobody is paged",
    "drift": "out of calibration: a refit is due or under way",
    "held": "telemetry cannot be trusted: nothing is fitted or promoted",
}
_MOST_TESTS = 12


def drift(
    drafter: Annotated[str, typer.Argument(help="Name of the drafter.")],
    url: ServiceUrl = DEFAULT_URL,
    token: ServiceToken = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the document as it is.")] = False,
) -> None:
    """Show the evidence of drift, the change point, the challenger and the watch."""
    with service_exit_codes(), ServiceCalls(url, token) as service:
        document = service.call("GET", f"/v1/drafters/{drafter}/drift").json()
        if as_json:
            typer.echo(json.dumps(document))
            return
        for line in drift_lines(document):
            typer.echo(line)


def drift_lines(document: dict[str, Any]) -> Iterator[str]:
    """The document in words, the strongest evidence first."""
    yield (
        f"Revision {document['revision']} of {document['drafter']}, publication "
        f"{document['publication']}: {document['status']} ({_WORDS[document['status']]})."
    )
    yield (
        f"{document['rows']:,} rows since it was published, through batch "
        f"{document['consumed_through']}; updated {document['updated_at']}."
    )
    exploration = document.get("exploration")  # not in documents of an older release
    if exploration is not None and exploration["raised"]:
        share = f"{100.0 * exploration['share']:g} %"
        yield f"While this lasts, engines that can verify {share} of steps in full."
    for monitor in document["data_quality"]:
        if monitor["status"] == "held":
            where = f" ({monitor['engine']})" if monitor["engine"] else ""
            yield f"  held by {monitor['monitor']}{where}: {monitor['message']}"
    tests = sorted(document["tests"], key=_share, reverse=True)
    shown = [(_test_name(test), _test_evidence(test)) for test in tests[:_MOST_TESTS]]
    width = max((len(name) for name, _ in shown), default=0)
    if shown:
        yield f"  {'test':<{width}} {'evidence':>10} {'warn':>7} {'act':>7}  status"
    for name, evidence in shown:
        yield f"  {name:<{width}} {evidence}"
    if len(tests) > _MOST_TESTS:
        yield f"  and {len(tests) - _MOST_TESTS} more with less evidence"
    yield from _trial_lines(document)
    decision = document["last_decision"]
    if decision is not None:
        yield f"Last decision: {decision['kind']} at {decision['at']}: {decision['reason']}"


def _share(test: dict[str, Any]) -> float:
    limit = float(test["threshold_log10"]["act"])
    return float(test["evidence_log10"]) / limit if limit else 0.0


def _test_name(test: dict[str, Any]) -> str:
    name = str(test["scope"])
    if test["position"] is not None:
        name = f"position {test['position']}"
    if test["segment"] is not None:
        from calib.segment_tags import segment_name  # here: --help must not wait for NumPy

        name = segment_name(test["segment"])
    return f"{name} {test['quantity']}"


def _test_evidence(test: dict[str, Any]) -> str:
    limits = test["threshold_log10"]
    evidence = f"10^{test['evidence_log10']:.1f}"
    warn, act = f"10^{limits['warn']:.3g}", f"10^{limits['act']:.3g}"
    line = f"{evidence:>10} {warn:>7} {act:>7}  {test['status']}"
    point = test["change_point"]
    if point is not None and test["status"] != "calm":
        since = f", {point['since']}" if point["since"] else ""
        line += f" since {point['row']:,} rows ago{since}"
    return line


def _trial_lines(document: dict[str, Any]) -> Iterator[str]:
    challenger, watch = document["challenger"], document["watch"]
    if challenger is not None:
        reason = f": {challenger['reason']}" if challenger["reason"] else ""
        yield (
            f"Challenger: revision {challenger['revision']}, {challenger['status']} after "
            f"{challenger['rows']:,} rows, evidence 10^{challenger['wealth_log10']:.1f} of "
            f"10^{challenger['threshold_log10']:.1f}{reason}"
        )
    if watch is not None:
        yield (
            f"Watch: revision {watch['revision']} against {watch['previous']} for "
            f"{watch['rows']:,} rows, evidence to roll back 10^{watch['evidence_log10']:.1f} of "
            f"10^{watch['threshold_log10']:.1f}."
        )
    if document["cool_down_until"] is not None:
        yield f"Cooling down until {document['cool_down_until']}."
