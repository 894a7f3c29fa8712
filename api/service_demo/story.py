"""The main job of the service, done on a running one and told while it happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from api.service_calls import ServiceCalls, ServiceProblemError
from api.service_demo import words
from api.service_demo.engines import Engines
from api.service_demo.replay import DRAFTER, ENGINES, deal, read_rows
from api.service_demo.teller import Teller
from calib.calibration_key import CalibrationKey

__all__ = ["Story"]

# Long enough for a machine with other work to do; on two free cores the whole takes 20 seconds.
_READY_SECONDS: Final = 60.0
_STORED_SECONDS: Final = 180.0
_FITTED_SECONDS: Final = 300.0
_ARRIVED_SECONDS: Final = 30.0
_WATCHED_SECONDS: Final = 60.0
_HAND_MADE: Final = 1.25

# The first champion needs most of the math rows to be better than identity beyond doubt.
_SHIFT: Final = "--order domain=math,chat,code --baseline-rows 8000"
_STS_MEDIA: Final = "application/vnd.sglang.dspark-sts+json"


class Story:
    """One telling.

    Args:
        service: calls to the running service.
        url: its address.
        database: where it keeps things, in words.
        telemetry: file to replay.
        key: calibration key of the drafter.
        drafter: name to register it by.
        teller: prints it; to standard output when None.
        token: bearer token of the engines, or None.
        tracking: what to type to see the mirrored runs, or None where nothing is mirrored.
    """

    def __init__(
        self,
        service: ServiceCalls,
        url: str,
        database: str,
        *,
        telemetry: Path,
        key: CalibrationKey,
        drafter: str = DRAFTER,
        teller: Teller | None = None,
        token: str | None = None,
        tracking: str | None = None,
    ) -> None:
        self._service = service
        self._url = url
        self._database = database
        self._tracking = tracking
        self._telemetry = telemetry
        self._key = key
        self._drafter = drafter
        self._path = f"/v1/drafters/{drafter}"
        self._teller = teller or Teller()
        self._engines = Engines(url, drafter, key.to_dict(), ENGINES, token=token)

    def tell(self) -> None:
        """Register, poll, send, recalibrate, promote and deliver.

        Raises:
            ServiceProblemError: a call failed, or something took too long.
        """
        self._await_ready()
        self._register()
        self._engines.start()
        self._poll()
        self._send()
        self._drift()
        result = self._recalibrate()
        self._publish(result)
        self._fleet()
        self._addresses()

    def keep_polling(self, stop: threading.Event) -> None:
        """Play the engines until ``stop`` is set, and tell what reaches them."""
        self._teller.say("The three engines go on polling. Ctrl-C stops everything.")
        while not stop.is_set():
            arrival = self._engines.next_arrival(0.5)
            if arrival is not None and not stop.is_set():
                self._teller.say(
                    f"{arrival.engine} got publication {arrival.publication}, revision "
                    f"{arrival.revision}: {words.numbers(arrival.values)}."
                )

    def close(self) -> None:
        """Stop the engines."""
        self._engines.stop()

    def _await_ready(self) -> None:
        ends = time.monotonic() + _READY_SECONDS
        while True:
            try:
                self._service.call("GET", "/readyz", timeout=2.0)
            except ServiceProblemError:
                if time.monotonic() >= ends:
                    raise
                time.sleep(0.1)
            else:
                return

    def _register(self) -> None:
        self._teller.title("Register", "a drafter is known by its name and its calibration key")
        answer = self._service.call("PUT", self._path, body={"key": self._key.to_dict()})
        state = answer.json()
        if answer.status_code == 201:
            start = f"it starts at identity, publication {state['publication']}"
        else:
            start = f"it was here before; publication {state['publication']} is served"
        self._teller.say(
            f"{self._drafter}: γ = {self._key.gamma}, key {state['key_digest'][:12]}…; {start}."
        )

    def _poll(self) -> None:
        self._teller.title(
            "Poll", "engines ask for temperatures; who knows them gets 304 and no body"
        )
        began = time.monotonic()
        answer = self._temperatures()
        took = time.monotonic() - began
        document, tag = answer.json(), answer.headers["ETag"]
        self._teller.say(
            f"200 in {words.milliseconds(took)}, {len(answer.content):,} bytes: publication "
            f"{document['publication']}, revision {document['revision']}, "
            f"{words.numbers(document['temperatures'])}."
        )
        began = time.monotonic()
        again = self._temperatures(tag)
        took = time.monotonic() - began
        self._teller.say(
            f"With its ETag: {again.status_code} in {words.milliseconds(took)}, "
            f"{len(again.content)} bytes."
        )
        arrived = self._engines.arrivals(document["publication"], _ARRIVED_SECONDS)
        self._teller.say(f"{len(arrived)} engines have it and keep a poll open for news.")

    def _send(self) -> None:
        self._teller.title("Telemetry", "three engines send what they observed; 202 means stored")
        rows = read_rows(self._telemetry, self._key.gamma)
        known = self._stored_rows()
        if known >= len(rows):
            self._teller.say(
                f"{known:,} rows of an earlier run are still stored; nothing is sent again."
            )
            return
        began = time.monotonic()
        with self._teller.counting("rows stored", len(rows)) as progress:
            counted = self._engines.send(deal(rows), progress, seconds=_STORED_SECONDS)
        took = time.monotonic() - began
        if counted["rows_lost"]:
            raise ServiceProblemError(0, "", f"{counted['rows_lost']:,} rows were not stored")
        self._teller.say(
            f"{counted['rows_accepted']:,} rows in {counted['batches']} batches stored durably "
            f"in {words.milliseconds(took)}; {counted['rows_rejected']} rejected."
        )

    def _drift(self) -> None:
        """What the closed loop made of the rows; in the story it watches and does not act."""
        self._teller.title("Watch", "every row is scored under what is served; evidence adds up")
        ends = time.monotonic() + _WATCHED_SECONDS
        while True:
            found = self._watched()
            if (found is not None and found["rows_total"] > 0) or time.monotonic() >= ends:
                break
            time.sleep(0.2)
        if found is None or not found["rows_total"]:
            self._teller.say("The worker has not read them yet.")
            return
        for sentence in words.drift_sentences(found):
            self._teller.say(sentence)

    def _watched(self) -> Mapping[str, Any] | None:
        try:
            document: Mapping[str, Any] = self._service.call("GET", f"{self._path}/drift").json()
        except ServiceProblemError:
            return None
        return document if "rows_total" in document else None

    def _recalibrate(self) -> Mapping[str, Any]:
        self._teller.title("Recalibrate", "the worker fits on some prompts and judges on others")
        answer = self._service.call("POST", f"{self._path}/recalibrations", body={})
        place = answer.headers["Location"]
        ends = time.monotonic() + _FITTED_SECONDS
        began = time.monotonic()
        with self._teller.waiting("the worker fits"):
            while True:
                job = self._service.call("GET", place).json()
                if job["status"] not in ("queued", "running"):
                    break
                if time.monotonic() >= ends:
                    raise ServiceProblemError(0, "", f"{place} is still {job['status']}")
                time.sleep(0.1)
        if job["status"] == "failed":
            raise ServiceProblemError(0, "", f"the recalibration failed: {job['error']}")
        self._teller.say(
            f"{job['status'].capitalize()} after {words.milliseconds(time.monotonic() - began)}."
        )
        for sentence in words.evidence_sentences(job["result"]):
            self._teller.say(sentence)
        result: Mapping[str, Any] = job["result"]
        return result

    def _publish(self, result: Mapping[str, Any]) -> None:
        if words.carries_promotion(result):
            self._teller.title("Promote by hand", "held-out rows speak for it; a person decides")
            self._teller.say(
                "By itself the service promotes what its gate lets through, on rows that come "
                "after the fit. All rows were sent before it, so an operator promotes it."
            )
            self._promote(int(result["revision"]), "demo: by hand, held-out rows speak for it")
            return
        self._teller.title("Promote by hand", "the evidence does not carry an automatic promotion")
        proposed = result.get("revision")
        if proposed is not None:
            self._teller.say(
                f"An operator promotes revision {proposed} all the same, and answers for it."
            )
            self._promote(int(proposed), "demo: by hand, the evidence does not carry it")
            return
        revision = self._hand_made()
        self._teller.say(
            f"There is no challenger, so an operator enters T = {_HAND_MADE} for every position by "
            f"hand (revision {revision}) and promotes it: not because it is better, but to show "
            "how numbers reach engines."
        )
        self._promote(revision, "demo: by hand, to show the delivery")
        self._teller.title("Roll back", "one call; the publication number grows all the same")
        self._change(f"{self._path}/rollback", "demo: the evidence was against it")

    def _hand_made(self) -> int:
        _, tag = self._service.drafter(self._drafter)
        body = {
            "temperatures": [_HAND_MADE] * self._key.gamma,
            "reason": "demo: shows the delivery, claims nothing",
        }
        return int(self._service.change(f"{self._path}/revisions", tag, body)["revision"])

    def _promote(self, revision: int, reason: str) -> None:
        self._change(f"{self._path}/revisions/{revision}/promote", reason)

    def _change(self, path: str, reason: str) -> None:
        """Publish something, and tell when it reached each engine."""
        _, tag = self._service.drafter(self._drafter)
        began = time.monotonic()
        answer = self._service.change(path, tag, {"reason": reason})
        arrived = self._engines.arrivals(answer["publication"], _ARRIVED_SECONDS)
        self._teller.say(words.promotion_sentence(answer))
        self._teller.say(words.arrival_sentence(arrived, began, len(ENGINES)))

    def _fleet(self) -> None:
        ends = time.monotonic() + _ARRIVED_SECONDS
        while True:
            fleet = self._service.call("GET", f"{self._path}/engines").json()
            if fleet["on_champion"] >= len(ENGINES) or time.monotonic() >= ends:
                break
            time.sleep(0.2)
        self._teller.title("Fleet", "who runs what, from the polls")
        self._teller.say(
            f"{fleet['on_champion']} engines on publication {fleet['publication']}, "
            f"{fleet['behind']} behind, {fleet['silent']} silent."
        )

    def _addresses(self) -> None:
        command = words.command()
        tracking = self._tracking
        if tracking and tracking.startswith("mlflow "):
            # Without the variable MLflow starts half a dozen processes for jobs that nobody has.
            program = f"MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false {words.command('mlflow')}"
            tracking = program + tracking.removeprefix("mlflow")
        self._teller.title("Look around", "in a browser, or in a second terminal")
        shown = f"{self._url}{self._path}"
        query = f"temperatures?gamma={self._key.gamma}"
        self._teller.show(
            [
                ("service", self._url),
                ("dashboard", f"{self._url}/"),
                ("API docs", f"{self._url}/docs"),
                ("database", self._database),
                ("poll", f"curl -i '{shown}/{query}'"),
                ("SGLang's file", f"curl -H 'Accept: {_STS_MEDIA}' '{shown}/{query}'"),
                ("report", f"{shown}/report?format=html"),
                ("engines", f"{shown}/engines"),
                ("events", f"{self._url}/v1/events"),
                *([("MLflow runs", tracking)] if tracking else []),
                ("roll back", f"{command} rollback {self._drafter} --url {self._url}"),
            ]
        )
        self._teller.title("See drift arrive", "one minute; the dashboard shows it without reload")
        self._teller.show([("replay", f"{command} replay {_SHIFT} --into {self._url}")])

    def _temperatures(self, tag: str | None = None) -> Any:
        parameters = {"gamma": str(self._key.gamma), "key": self._key.digest}
        headers = {} if tag is None else {"If-None-Match": tag}
        path = f"{self._path}/temperatures"
        return self._service.call("GET", path, parameters=parameters, headers=headers)

    def _stored_rows(self) -> int:
        """Rows of an earlier run, as its report counted them; 0 without a report."""
        try:
            report = self._service.call("GET", f"{self._path}/report").json()
            return int(report["telemetry"]["stored_rows"])
        except (ServiceProblemError, KeyError, TypeError, ValueError):
            return 0
