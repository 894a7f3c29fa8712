"""Writes to a tracking server that change nothing when they are repeated.

Everything is looked for before it is made: experiments and models by name, runs and versions by a
tag that they are born with. MLflow itself keeps one of two equal metrics, parameters, tags and
dataset inputs, and a file uploaded twice is one file.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calib.errors import ConfigurationError
from monitoring.mlflow_mirror.contents import RUN_TAG, Content, DatasetContent
from monitoring.mlflow_mirror.errors import TrackingAwayError, TrackingRefusedError
from monitoring.mlflow_mirror.tracking_place import TrackingPlace

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

__all__ = ["MODEL_FOLDER", "TrackingServer", "tags_of_run"]

MODEL_FOLDER: Final = "model"
"""Artifact folder of the pyfunc model in a run."""

_VERSION_TAGS: Final = ("drafter", "revision", "digest", "status", "method")

# MLflow's pages are those of model training then, with charts and runs in front.
_EXPERIMENT_TAGS: Final = {"mlflow.experimentKind": "custom_model_development"}

# A batch of MLflow holds 1,000 things, 100 parameters and 100 tags at most.
_METRICS_A_BATCH: Final = 800
_SMALL_BATCH: Final = 90

# Nothing is wrong with what was told: tell it again later.
_AWAY: Final = {
    "ABORTED",
    "DEADLINE_EXCEEDED",
    "ENDPOINT_NOT_FOUND",
    "INTERNAL_ERROR",
    "IO_ERROR",
    "PERMISSION_DENIED",
    "REQUEST_LIMIT_EXCEEDED",
    "RESOURCE_EXHAUSTED",
    "TEMPORARILY_UNAVAILABLE",
    "UNAUTHENTICATED",
}
_REFUSED: Final = {"BAD_REQUEST", "INVALID_PARAMETER_VALUE", "MALFORMED_REQUEST"}


class TrackingServer:
    """One tracking server and its model registry. Loads MLflow when it is made.

    Args:
        place: where it is.

    Raises:
        TrackingAwayError: it does not answer.
    """

    def __init__(self, place: TrackingPlace) -> None:
        self._place = place
        self._experiments: dict[str, str] = {}
        with typed():
            self._client = _open(place)

    def run(self, experiment: str, content: Content) -> Run | None:
        """The run of ``content``, made with its tags if there is none; None if somebody deleted it.

        Raises:
            TrackingAwayError: the server does not answer; nothing or all of this was done.
            TrackingRefusedError: it will never take this.
        """
        from mlflow.entities import ViewType

        with typed():
            number = self._experiment(experiment)
            found = self._client.search_runs(
                [number],
                filter_string=f"tags.`{RUN_TAG}` = '{content.identity}'",
                run_view_type=ViewType.ALL,
                max_results=1,
            )
            if found:
                deleted = found[0].info.lifecycle_stage == "deleted"
                return None if deleted else found[0]
            tags = {**content.tags, RUN_TAG: content.identity}
            return self._client.create_run(
                number,
                start_time=_milliseconds(content.started_at),
                tags=tags,
                run_name=content.name,
            )

    def log(self, run: Run, content: Content) -> None:
        """Write parameters, tags, metrics and dataset of ``content`` to its run.

        Raises:
            TrackingAwayError: the server does not answer; some of it may be written.
            TrackingRefusedError: it will never take this.
        """
        from mlflow.entities import Metric, Param, RunTag

        identifier, at = run.info.run_id, _milliseconds(content.at)
        metrics = [Metric(m.key, m.value, at, m.step) for m in content.metrics]
        parameters = [Param(name, text) for name, text in content.parameters.items()]
        tags = [RunTag(name, text) for name, text in content.tags.items()]
        with typed():
            for start in range(0, len(metrics), _METRICS_A_BATCH):
                part = metrics[start : start + _METRICS_A_BATCH]
                self._client.log_batch(identifier, metrics=part)
            for start in range(0, max(len(parameters), len(tags)), _SMALL_BATCH):
                chosen = slice(start, start + _SMALL_BATCH)
                self._client.log_batch(identifier, params=parameters[chosen], tags=tags[chosen])
            if content.dataset is not None:
                self._client.log_inputs(identifier, datasets=[_dataset_input(content.dataset)])

    def finish(self, run: Run, content: Content) -> None:
        """Mark the run as over, if ``content`` says how it ended.

        Raises:
            TrackingAwayError: the server does not answer.
            TrackingRefusedError: it will never take this.
        """
        if content.status is not None and run.info.status != content.status:
            with typed():
                self._client.set_terminated(
                    run.info.run_id, content.status, end_time=_milliseconds(content.at)
                )

    def upload(self, run: Run, files: Mapping[str, bytes]) -> None:
        """Put files into the artifacts of a run, in place of older ones.

        Raises:
            TrackingAwayError: the server does not answer; some may be there.
            TrackingRefusedError: it will never take this.
        """
        with tempfile.TemporaryDirectory(prefix="dspark-calib-") as folder, typed():
            for name, data in files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            self._client.log_artifacts(run.info.run_id, folder)

    def upload_folder(self, run: Run, folder: Path, name: str) -> None:
        """Put a folder into the artifacts of a run under ``name``.

        Raises:
            TrackingAwayError: the server does not answer; some may be there.
            TrackingRefusedError: it will never take this.
        """
        with typed():
            self._client.log_artifacts(run.info.run_id, str(folder), name)

    def is_registered(self, model: str, identity: str) -> bool:
        """Whether a revision has a version.

        Args:
            model: name of the registered model.
            identity: what the revision's run is found by.

        Raises:
            TrackingAwayError: the server does not answer.
        """
        with typed():
            return self._version(model, identity) is not None

    def register(self, model: str, content: Content, run: Run) -> str:
        """The version of a revision whose model lies in the artifacts of ``run``.

        Args:
            model: name of the registered model.
            content: of the revision's run.
            run: that run.

        Raises:
            TrackingAwayError: the server does not answer.
            TrackingRefusedError: it will never take this.
        """
        with typed():
            self._make_model(model)
            found = self._version(model, content.identity)
            if found is None:
                tags = {name: content.tags[name] for name in _VERSION_TAGS}
                found = self._client.create_model_version(
                    model,
                    source=f"{run.info.artifact_uri}/{MODEL_FOLDER}",
                    run_id=run.info.run_id,
                    tags={**tags, RUN_TAG: content.identity},
                    description=f"Revision {tags['revision']}: confidences from raw logits.",
                )
            return str(found.version)

    def set_aliases(self, model: str, aliases: Mapping[str, str | None]) -> list[str]:
        """Point aliases at revisions; the identities that are not registered are returned.

        Args:
            model: name of the registered model.
            aliases: identity of a revision by name of the alias; None removes the alias.

        Raises:
            TrackingAwayError: the server does not answer; some may be set.
            TrackingRefusedError: it will never take this.
        """
        missing: list[str] = []
        with typed():
            self._make_model(model)
            current = dict(self._client.get_registered_model(model).aliases)
            for alias, identity in aliases.items():
                found = None if identity is None else self._version(model, identity)
                if identity is not None and found is None:
                    missing.append(identity)
                elif found is not None and str(current.get(alias)) != str(found.version):
                    self._client.set_registered_model_alias(model, alias, str(found.version))
                elif identity is None and alias in current:
                    self._client.delete_registered_model_alias(model, alias)
        return missing

    def _experiment(self, name: str) -> str:
        known = self._experiments.get(name)
        if known is not None:
            return known
        found = self._client.get_experiment_by_name(name)
        if found is None:
            folder = self._place.artifacts
            place = None if folder is None else (folder / name).as_uri()
            identifier = self._create_experiment(name, place)
        else:
            identifier = found.experiment_id
            if found.lifecycle_stage == "deleted":
                # Its runs go on being written; who wants none of it switches the mirror off.
                self._client.restore_experiment(identifier)
        self._experiments[name] = identifier
        return identifier

    def _create_experiment(self, name: str, place: str | None) -> str:
        from mlflow.exceptions import MlflowException

        try:
            return str(self._client.create_experiment(name, place, _EXPERIMENT_TAGS))
        except MlflowException as error:
            found = self._client.get_experiment_by_name(name)
            if error.error_code != "RESOURCE_ALREADY_EXISTS" or found is None:
                raise
            return str(found.experiment_id)  # another worker was faster

    def _make_model(self, model: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(
                model,
                tags={"drafter": model},
                description=(
                    "Calibrated confidences of a drafter, from raw confidence logits. Each version "
                    "is a revision; the tag 'revision' says which."
                ),
            )
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _version(self, model: str, identity: str) -> ModelVersion | None:
        found = self._client.search_model_versions(
            f"name = '{model}' and tags.`{RUN_TAG}` = '{identity}'", max_results=1
        )
        return found[0] if found else None


def tags_of_run(place: TrackingPlace, identifier: str) -> dict[str, str]:
    """The tags of one run.

    Raises:
        ConfigurationError: no such run there.
        TrackingAwayError: the server does not answer.
    """
    from mlflow.exceptions import MlflowException

    with typed():
        try:
            return dict(_open(place).get_run(identifier).data.tags)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            remedy = f"{place.shown} has no such run; name another --tracking-uri"
            raise ConfigurationError("RUN_ID", identifier, remedy) from error


@contextmanager
def typed() -> Iterator[None]:
    """Turn what MLflow raises into the two errors of this package; what is neither comes out."""
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.exc import TimeoutError as PoolTimeoutError

    try:
        yield
    except MlflowException as error:
        if error.error_code in _AWAY or _is_locked(error):
            raise TrackingAwayError(_one_line(error)) from error
        if error.error_code in _REFUSED:
            raise TrackingRefusedError(_one_line(error)) from error
        raise
    except (RequestException, DBAPIError, PoolTimeoutError, OSError) as error:
        raise TrackingAwayError(_one_line(error)) from error


def _open(place: TrackingPlace) -> MlflowClient:
    from mlflow import MlflowClient

    def initialise(uri: str) -> None:
        MlflowClient(tracking_uri=uri, registry_uri=uri).search_experiments(max_results=1)

    place.make_local_store(initialise)
    client = MlflowClient(tracking_uri=place.uri, registry_uri=place.uri)
    client.search_experiments(max_results=1)
    return client


def _dataset_input(content: DatasetContent) -> Any:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(
        name=content.name,
        digest=content.digest,
        source_type="dspark-calib",
        source=json.dumps(content.source, sort_keys=True),
        profile=json.dumps(content.profile, sort_keys=True),
    )
    return DatasetInput(dataset, tags=[InputTag("mlflow.data.context", "training")])


def _is_locked(error: Exception) -> bool:
    """SQLite's words inside an error that says something else."""
    return "database is locked" in str(error)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__


def _milliseconds(seconds: float) -> int:
    return round(1000.0 * seconds)
