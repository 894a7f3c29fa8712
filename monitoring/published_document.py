"""The document that engines poll: canonical JSON of one publication, and its variants.

Pure functions of their arguments, so every replica makes the same bytes. The document of a
publication is made once, when it is published, and stored; shorter gammas, segments and SGLang's
file are cut from it.

::

    {"affine": {"slopes": [γ], "intercepts": [γ]} | null, "derived_from_gamma": null, "digest": …,
     "drafter": …, "evidence": {…}, "fitted_at": … | null, "gamma": γ, "key": …,
     "label_kind": … | null, "method": …, "position_statuses": [γ], "publication": n,
     "published_at": …, "revision": n, "segment": null, "segments": {…} | null, "status": …,
     "temperatures": [γ], "valid_until": … | null}

``key`` is the digest of the calibration key. ``digest`` names the revision's key and full
numbers; a prefix keeps it and says what it was cut from in ``derived_from_gamma``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from calib.calibration_fields import serving_status
from calib.calibration_values import checked_gamma
from calib.canonical_json import canonical_json, parse_json_object, plain_json
from calib.errors import CalibrationValueError
from calib.formats.sglang_sts import sts_bytes
from calib.statuses import PositionStatus, ServingStatus
from monitoring.segment_match import SegmentMatch, UnmatchedSegment, match_segment

if TYPE_CHECKING:
    from monitoring.store.drafters import Drafter
    from monitoring.store.revisions import Revision

__all__ = ["Media", "document_maker", "iso_time", "publication_document", "render"]

Media = Literal["json", "sts"]

_SOURCE = "publication document"


def iso_time(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC, cut to the millisecond.

    Examples:
        >>> iso_time(0.25)
        '1970-01-01T00:00:00.250Z'
    """
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return moment.removesuffix("+00:00") + "Z"


def publication_document(
    drafter: Drafter,
    revision: Revision,
    *,
    publication: int,
    published_at: float,
    valid_until: float | None,
) -> bytes:
    """Canonical JSON (RFC 8785) of one publication for the drafter's full gamma, pooled.

    Args:
        drafter: who it is for.
        revision: what is published.
        publication: its number, which only grows.
        published_at: seconds since the epoch.
        valid_until: seconds since the epoch after which clients call it stale; None: never.

    Raises:
        CalibrationValueError: a revision of another gamma than the drafter's.
    """
    calibration = revision.calibration
    if calibration.gamma != drafter.gamma:
        raise CalibrationValueError(
            "gamma", calibration.gamma, f"publish a revision of gamma {drafter.gamma}"
        )
    affine = None
    if calibration.slopes is not None and calibration.intercepts is not None:
        affine = {"slopes": calibration.slopes, "intercepts": calibration.intercepts}
    return canonical_json(
        {
            "affine": affine,
            "derived_from_gamma": calibration.derived_from_gamma,
            "digest": calibration.digest,
            "drafter": drafter.name,
            "evidence": plain_json(calibration.evidence, "evidence"),
            "fitted_at": calibration.fitted_at,
            "gamma": calibration.gamma,
            "key": drafter.key.digest,
            "label_kind": calibration.label_kind,
            "method": calibration.method,
            "position_statuses": [str(status) for status in calibration.position_statuses],
            "publication": publication,
            "published_at": iso_time(published_at),
            "revision": revision.number,
            "segment": None,
            "segments": revision.segments,
            "status": str(calibration.status),
            "temperatures": calibration.temperatures,
            "valid_until": None if valid_until is None else iso_time(valid_until),
        }
    )


def document_maker(
    valid_for_seconds: float | None = None,
) -> Callable[[int, Revision, Drafter, float], bytes]:
    """What :func:`monitoring.store.publications.publish` calls to make the served bytes.

    Args:
        valid_for_seconds: how long clients may call a publication fresh; None: without end.
    """

    def make(publication: int, revision: Revision, drafter: Drafter, published_at: float) -> bytes:
        until = None if valid_for_seconds is None else published_at + valid_for_seconds
        return publication_document(
            drafter,
            revision,
            publication=publication,
            published_at=published_at,
            valid_until=until,
        )

    return make


def render(
    document: bytes,
    *,
    gamma: int,
    segment: Mapping[str, str] | None = None,
    media: Media = "json",
    unmatched: UnmatchedSegment = "pooled",
    exploration: float | None = None,
) -> bytes:
    """One variant of a publication: equal arguments give equal bytes on every replica.

    Args:
        document: what :func:`publication_document` made.
        gamma: positions the engine runs; fewer than published gives the prefix.
        segment: raw tag values of the traffic, such as ``{"domain": "code"}``; None or empty for
            the pooled numbers.
        media: ``"json"``, or ``"sts"`` for the file that SGLang loads.
        unmatched: what a sampling temperature or acceptance rule that no row had gets, and any
            segment of a revision without segments: ``"pooled"`` (or the parent's) numbers,
            flagged in ``segment``, or ``"identity"``.
        exploration: share of steps that an engine which can shall verify in full; None or 0
            leaves it out. SGLang's file never has it.

    Raises:
        CalibrationValueError: a longer gamma than published, or a segment tag that does not exist
            or has no such values.
        FormatError: ``document`` is no publication.
    """
    fields = parse_json_object(document, _SOURCE)
    gamma = checked_gamma(gamma)
    if gamma > fields["gamma"]:
        raise CalibrationValueError(
            "gamma", gamma, f"{fields['gamma']} positions are published; fit a longer drafter"
        )
    if media == "json" and exploration:
        fields["exploration"] = exploration
    elif media == "json" and gamma == fields["gamma"] and not segment:
        return document
    if segment:
        _choose(fields, match_segment(fields["segments"], segment, unmatched))
    if gamma < fields["gamma"]:
        _cut(fields, gamma)
    return canonical_json(fields) if media == "json" else _sglang_file(fields)


def _choose(fields: dict[str, Any], match: SegmentMatch) -> None:
    """Put the numbers of the segment, or what stands in for them, in their place."""
    if match.numbers is not None:
        statuses = [PositionStatus(word) for word in match.numbers["statuses"]]
        fields |= {
            "temperatures": match.numbers["temperatures"],
            "affine": match.numbers["affine"],
            "position_statuses": match.numbers["statuses"],
            "status": str(serving_status(statuses, affine=match.numbers["affine"] is not None)),
        }
    elif match.level == "identity":
        gamma = fields["gamma"]
        fields |= {
            "affine": None,
            "digest": None,  # of numbers that no revision holds
            "evidence": {},
            "fitted_at": None,
            "label_kind": None,
            "method": "identity",
            "position_statuses": [str(PositionStatus.INSUFFICIENT)] * gamma,
            "status": str(ServingStatus.UNCALIBRATED),
            "temperatures": [1.0] * gamma,
        }
    fields["segment"] = {
        "requested": dict(match.requested),
        "matched": None if match.matched is None else dict(match.matched),
        "level": match.level,
    }


def _cut(fields: dict[str, Any], gamma: int) -> None:
    """Keep the first ``gamma`` positions of everything that has one entry per position."""
    fields["derived_from_gamma"] = fields["derived_from_gamma"] or fields["gamma"]
    fields["gamma"] = gamma
    _cut_numbers(fields, gamma)
    fields["position_statuses"] = fields["position_statuses"][:gamma]
    if fields["status"] in (ServingStatus.FITTED, ServingStatus.PARTIAL):
        kept = [PositionStatus(word) for word in fields["position_statuses"]]
        fields["status"] = str(serving_status(kept, affine=fields["affine"] is not None))
    if fields["segments"] is not None:
        fields["segments"]["gamma"] = gamma
        for entry in fields["segments"]["segments"]:
            _cut_numbers(entry, gamma)
            entry["statuses"] = entry["statuses"][:gamma]


def _cut_numbers(fields: dict[str, Any], gamma: int) -> None:
    fields["temperatures"] = fields["temperatures"][:gamma]
    if fields.get("affine") is not None:
        fields["affine"] = {name: numbers[:gamma] for name, numbers in fields["affine"].items()}


def _sglang_file(fields: Mapping[str, Any]) -> bytes:
    """The file of ``--speculative-dspark-confidence-sts-path``; provenance rides along."""
    gamma = fields["gamma"]
    positions = fields["evidence"].get("positions")
    known = isinstance(positions, Sequence) and len(positions) >= gamma
    fits = [fit if isinstance(fit, Mapping) else {} for fit in positions[:gamma]] if known else []
    own = fields["segment"] is None or fields["segment"]["matched"] is None
    return sts_bytes(
        fields["temperatures"],
        dataset=fields["drafter"],
        num_samples=_rows(fits),
        # Errors of the pooled fit say nothing about numbers of a segment.
        ece_before=[fit.get("ece_before") for fit in fits] if fits and own else None,
        ece_after=[fit.get("ece_after") for fit in fits] if fits and own else None,
        extra={
            name: fields[name]
            for name in ("digest", "drafter", "gamma", "key", "publication", "revision", "status")
        },
    )


def _rows(fits: Sequence[Mapping[str, Any]]) -> int:
    """Rows of the fit: those that inform the position with the most."""
    counts = [fit.get("rows") for fit in fits]
    return max((count for count in counts if isinstance(count, int)), default=0)
