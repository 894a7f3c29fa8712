"""What this process knows, and the rules by which it may change.

* A publication never goes back. The service's counter only grows, rollbacks included, so a smaller
  number comes from a stale replica or a liar. Only another key starts a new count: told by the
  service (409, or an answer for another key where none was asked for) or by :meth:`change_key`.
* The same publication never says two different things.
* A key mismatch means identity at once: numbers of one model are not served for another.
* An answer to a question that was asked under an older key is void.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from dspark_calib_client.errors import InvalidAnswerError
from dspark_calib_client.temperatures import Source
from dspark_calib_client.validation import Expected, Publication

__all__ = ["BakedIn", "Held", "Knowledge", "Question"]


@dataclass(frozen=True)
class BakedIn:
    """Numbers that come with the engine.

    Attributes:
        values: temperatures, one per position.
        revision: −1 where unknown.
    """

    values: tuple[float, ...]
    revision: int = -1


@dataclass(frozen=True)
class Held:
    """What is known at one instant; immutable, replaced as a whole.

    Attributes:
        source: where the numbers in use come from.
        publication: what the service said, or None.
        baked_in: used where there is no publication; None for identity.
        confirmed_at: monotonic seconds of the service's last confirmation, or None.
        mismatch: whether the service said that it calibrates something else.
    """

    source: Source
    publication: Publication | None
    baked_in: BakedIn | None
    confirmed_at: float | None
    mismatch: bool = False


@dataclass(frozen=True)
class Question:
    """What a poll asks; the answer is only good for the same epoch.

    Attributes:
        expected: drafter, gamma and key.
        etag: what is already known, or None.
        epoch: grows with every change of key.
    """

    expected: Expected
    etag: str | None
    epoch: int


class Knowledge:
    """Holds what is known. Readers take :attr:`held`, one attribute; writers take turns."""

    def __init__(
        self, expected: Expected, baked_in: BakedIn | None, *, one_segment: bool = False
    ) -> None:
        self.held = _without_publication(baked_in)
        self._expected = expected
        self._one_segment = one_segment
        self._newest: Publication | None = None
        self._epoch = 0
        self._key_confirmed = False
        self._lock = threading.Lock()

    @property
    def key(self) -> str | None:
        """Digest of the key the engine runs, or None."""
        return self._expected.key

    @property
    def key_confirmed(self) -> bool:
        """Whether the service agreed to this key in this process; always without a key."""
        return (self._key_confirmed or self._expected.key is None) and not self.held.mismatch

    def question(self) -> Question:
        """What the next poll should ask."""
        with self._lock:
            publication = self.held.publication
            etag = None if publication is None else publication.etag
            return Question(self._expected, etag, self._epoch)

    def accept(
        self, question: Question, publication: Publication, source: Source, confirmed_at: float
    ) -> bool:
        """Take over a validated answer; True when the numbers in use may have changed.

        Raises:
            InvalidAnswerError: ``publication_went_back`` or ``publication_conflict``.
        """
        with self._lock:
            if question.epoch != self._epoch:
                return False
            self._refuse_steps_back(publication)
            before = self.held
            self._newest = publication
            self._key_confirmed = self._key_confirmed or source is Source.SERVICE
            self.held = Held(source, publication, before.baked_in, confirmed_at)
            return before.publication != publication

    def confirm(self, question: Question, at: float) -> None:
        """The service said that nothing has changed since ``question.etag``."""
        with self._lock:
            publication = self.held.publication
            if question.epoch != self._epoch or publication is None:
                return
            if publication.etag == question.etag:
                self._key_confirmed = True
                self.held = replace(self.held, source=Source.SERVICE, confirmed_at=at)

    def mismatch(self, question: Question) -> bool:
        """The service calibrates another key: identity at once. False for a void answer."""
        with self._lock:
            if question.epoch != self._epoch:
                return False
            self._newest = None
            self._key_confirmed = False
            self.held = replace(_without_publication(None), mismatch=True)
            return True

    def change_key(self, key: str | None, baked_in: BakedIn | None) -> None:
        """The engine runs something else now; nothing is inherited."""
        with self._lock:
            self._expected = replace(self._expected, key=key)
            self._newest = None
            self._key_confirmed = False
            self._epoch += 1
            self.held = _without_publication(baked_in)

    def forget_publications(self) -> None:
        """Accept any publication next, as after a restore of the service from a backup.

        The numbers in use stay until then.
        """
        with self._lock:
            self._newest = None
            self._epoch += 1
            self.held = replace(self.held, publication=_without_etag(self.held.publication))

    def reset_lock_after_fork(self) -> None:
        """In a child process: forget a lock that another thread of the parent may have held."""
        self._lock = threading.Lock()

    def _refuse_steps_back(self, publication: Publication) -> None:
        newest = self._newest
        if newest is None or newest.key != publication.key:
            return
        if publication.number < newest.number:
            raise InvalidAnswerError(
                "publication_went_back", f"{publication.number} after {newest.number}"
            )
        # A segment's numbers may follow a setting of the service; pooled ones never change.
        repeated = publication.number == newest.number and not self._one_segment
        if repeated and not publication.same_numbers(newest):
            raise InvalidAnswerError(
                "publication_conflict", f"publication {newest.number} has two meanings"
            )


def _without_publication(baked_in: BakedIn | None) -> Held:
    source = Source.IDENTITY if baked_in is None else Source.BAKED_IN
    return Held(source, None, baked_in, None)


def _without_etag(publication: Publication | None) -> Publication | None:
    return None if publication is None else replace(publication, etag="")
