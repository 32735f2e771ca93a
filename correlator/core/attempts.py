"""Attempts at expressions. An attempt takes events and the passing of time, and calls the handler when its expression
is true.

A listener of `on_all` always has one attempt at the first step of its sequence: when an attempt has left this step, or
has ended, the listener begins another attempt, as long as the first step can still become true. If an event makes an
expression true and the handler then fails, the event has no effect on the attempt.

Owner: the context's thread.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from correlator.core.calls import HandlerCalls, with_arguments
from correlator.core.commit import StateEntry
from correlator.core.expressions import FRESH, Pattern, Plan, Progress
from correlator.core.instances import (
    Attempt,
    Deadline,
    ExpressionListener,
    Instance,
    Leaf,
    StoredAttempt,
    StoredExpression,
    restored_expression,
    stored_parts,
)
from correlator.core.listeners import ListenerIndex
from correlator.core.messages import apart, recorded
from correlator.core.monitor import ListenerSpec
from correlator.core.state import encode
from correlator.core.timers import Timers
from correlator.errors import StateError

_attempt = msgspec.msgpack.Decoder(StoredAttempt)
_expression = msgspec.msgpack.Decoder(StoredExpression)
CALENDAR_LOOK_S = 60.0
"""Seconds between two readings of the local calendar while `at` waits, and so the longest delay until a change of the
clock is noticed."""


class Attempts:
    """The attempts of one context.

    Args:
        calls: calls the handlers; its `moment` is the present time.
        timers: the timers of the context, which also hold deadlines of attempts.

    Attributes:
        index: the patterns that attempts wait for.
    """

    def __init__(self, calls: HandlerCalls, timers: Timers) -> None:
        self.index: ListenerIndex[Leaf] = ListenerIndex()
        self._calls = calls
        self._timers = timers
        self._changed: dict[ExpressionListener | Attempt, None] = {}
        self._gone: list[StateEntry] = []

    # --- listeners ---

    def begin(self, listener: ExpressionListener) -> None:
        """Add a listener, and begin its first attempt."""
        if not listener.instance.alive:
            return
        listener.instance.expressions[listener.number] = listener
        self._note(listener)
        self._attempt(listener)

    def cancel(self, listener: ExpressionListener) -> None:
        """Remove a listener with all its attempts."""
        for attempt in list(listener.attempts):
            self._drop(attempt)
        self._remove(listener)

    def _attempt(self, listener: ExpressionListener) -> None:
        instance = listener.instance
        number, instance.next_attempt = instance.next_attempt, instance.next_attempt + 1
        attempt = Attempt(listener, number, FRESH)
        listener.attempts[attempt] = None
        self._go_on(attempt, listener.plan.step(FRESH, (), None, self._calls.moment))

    def _remove(self, listener: ExpressionListener) -> None:
        listener.alive = False
        listener.instance.expressions.pop(listener.number, None)
        self._note(listener)

    # --- events and time ---

    def happened(self, leaves: Iterable[Leaf], event: Any) -> None:
        """Give an event to the attempts whose leaves it matches.

        Within one monitor, the listener that began first comes first; within a listener, the attempt that began first
        comes first. So the order is the same in every life.
        """
        hit: dict[Attempt, list[int]] = {}
        for leaf in leaves:
            hit.setdefault(leaf.attempt, []).append(leaf.part)
        kept = _Kept(event)
        for attempt, parts in sorted(hit.items(), key=_age):
            if attempt.alive and attempt.listener.instance.alive:
                self._take(attempt, parts, kept)

    def _take(self, attempt: Attempt, parts: list[int], kept: "_Kept") -> None:
        """Give an event to an attempt that it matches. If the event cannot be stored, the handler counts as failed."""
        plan, instance = attempt.listener.plan, attempt.listener.instance
        try:
            event = kept.event if instance.monitor.persistent else kept.original
            plan.check(parts, event)
        except Exception as error:  # noqa: BLE001  # `__hash__` of the application may raise anything
            self._calls.call(instance, partial(_fail, error), kept.original)
            return
        progress = plan.step(attempt.progress, parts, event, self._calls.moment)
        data = attempt.recorded
        if instance.monitor.persistent:
            data = {**data, **dict.fromkeys(parts, kept.data)}
        if plan.outcome(progress):
            self._calls.add_effect(self._complete, attempt)
            self._call(attempt.listener, progress, data, kept.original)
            return
        attempt.recorded = data
        self._become(attempt, progress)

    def look(self, attempt: Attempt) -> None:
        """Check the clocks of an attempt. A clock that has run out stays so even if the handler fails."""
        plan = attempt.listener.plan
        attempt.deadline = None
        while attempt.alive and (clocks := plan.run_out(attempt.progress, self._calls.moment)):
            progress = plan.step(attempt.progress, clocks, None, self._calls.moment)
            if plan.outcome(progress):
                self._complete(attempt)
                self._call(attempt.listener, progress, attempt.recorded, None)
            else:
                self._become(attempt, progress)
        if attempt.alive:
            self._set_deadline(attempt)

    def _become(self, attempt: Attempt, progress: Progress) -> None:
        """Give an attempt its new progress, in which its expression is open or false."""
        listener, plan = attempt.listener, attempt.listener.plan
        if plan.outcome(progress) is None:
            leaves_first_step = not plan.begun(attempt.progress) and plan.begun(progress)
            self._go_on(attempt, progress)
            if leaves_first_step and listener.begins_again:
                self._attempt(listener)
        else:
            self._drop(attempt)
            self._end_if_over(listener)

    def _complete(self, attempt: Attempt) -> None:
        """End an attempt whose expression is true."""
        listener = attempt.listener
        self._drop(attempt)
        if listener.begins_again and not listener.plan.begun(attempt.progress):
            self._attempt(listener)
        self._end_if_over(listener)

    def _end_if_over(self, listener: ExpressionListener) -> None:
        if not listener.attempts and not listener.declared:
            self._remove(listener)

    def _call(self, listener: ExpressionListener, progress: Progress, data: Mapping[int, bytes], event: Any) -> None:
        """Call the handler. An event that attempts keep is copied for the handler, which may change the copy."""
        events = progress.events
        arguments = [
            apart(events[number], data[number]) if number in data else events.get(number)
            for number in listener.plan.arguments
        ]
        self._calls.call(listener.instance, partial(with_arguments, listener.method, arguments), event)

    def _go_on(self, attempt: Attempt, progress: Progress) -> None:
        attempt.progress = progress
        self._arm(attempt)
        self._note(attempt)

    def _arm(self, attempt: Attempt) -> None:
        """Put the patterns and clocks that an attempt waits for into the index and the timers."""
        plan, progress = attempt.listener.plan, attempt.progress
        waits = [number for number in plan.waiting(progress) if isinstance(plan.parts[number], Pattern)]
        for number in [number for number in attempt.leaves if number not in waits]:
            self.index.remove(attempt.leaves.pop(number))
        for number in waits:
            if number not in attempt.leaves:
                leaf = attempt.leaves[number] = Leaf(attempt, number, plan.pattern(number, progress))
                self.index.add(leaf)
        self._set_deadline(attempt)

    def _set_deadline(self, attempt: Attempt) -> None:
        due = attempt.listener.plan.next_look(attempt.progress, self._calls.moment, CALENDAR_LOOK_S)
        deadline = attempt.deadline
        if deadline is not None and deadline.due != due:
            self._timers.cancel(deadline)
            deadline = None
        if deadline is None and due is not None:
            deadline = Deadline(attempt, due)
            self._timers.add(deadline)
        attempt.deadline = deadline

    def _drop(self, attempt: Attempt) -> None:
        if not attempt.alive:
            return
        attempt.alive = False
        del attempt.listener.attempts[attempt]
        for leaf in attempt.leaves.values():
            self.index.remove(leaf)
        attempt.leaves.clear()
        if attempt.deadline is not None:
            self._timers.cancel(attempt.deadline)
        self._note(attempt)

    # --- the store ---

    def _note(self, changed: ExpressionListener | Attempt) -> None:
        listener = changed.listener if isinstance(changed, Attempt) else changed
        if listener.instance.monitor.persistent:
            self._changed[changed] = None

    def take_changes(self) -> list[StateEntry]:
        """The entries that changed since the last call; an attempt that began and ended in between has none."""
        changed, self._changed = self._changed, {}
        entries, self._gone = self._gone, []
        for one in changed:
            instance = one.listener.instance if isinstance(one, Attempt) else one.instance
            if one.alive or one.stored:
                entries.append(StateEntry(instance.waiting_owner, one.key, one.encoded() if one.alive else None))
                one.stored = one.alive
        return entries

    def restore(
        self,
        instance: Instance,
        specs: Iterable[ListenerSpec],
        resolve: Callable[[str], type[Any]],
        stored: Mapping[bytes, bytes],
    ) -> list[ListenerSpec]:
        """Restore the expression listeners of an instance, with their attempts.

        A listener that the class declared when it was stored, and no longer declares, goes on with the attempts that
        have taken an event or seen a clock run out, and begins no other attempt.

        Args:
            instance: the instance.
            specs: the listeners that the class declares.
            resolve: returns the class behind a `type_name`.
            stored: what the store holds under the `waiting_owner` of the instance.

        Returns the declared listeners that the store does not hold.

        Raises:
            StateError: E4203 for a handler that the class no longer has, or an event that no longer fits its class.
        """
        missing = {_declaration(spec.plan, spec.handler): spec for spec in specs if spec.plan is not None}
        attempts: dict[bytes, dict[bytes, StoredAttempt]] = {}
        for key, data in stored.items():
            number, _, attempt = key.partition(b".")
            if attempt:
                attempts.setdefault(number, {})[key] = _attempt.decode(data)
        for key, data in stored.items():
            if b"." not in key:
                kept = _expression.decode(data)
                plan = Plan(restored_expression(resolve, kept.parts))
                declared = kept.declared and missing.pop(_declaration(plan, kept.handler), None) is not None
                if kept.declared and not declared:
                    self._restore_outdated(instance, key, plan, kept.handler, attempts.get(key, {}))
                else:
                    listener = ExpressionListener(
                        instance, int(key), plan, kept.handler, once=kept.once, declared=declared
                    )
                    self._restore_listener(listener, attempts.get(key, {}))
        return list(missing.values())

    def _restore_outdated(
        self, instance: Instance, key: bytes, plan: Plan, handler: str, attempts: Mapping[bytes, StoredAttempt]
    ) -> None:
        under_way = {one: kept for one, kept in attempts.items() if kept.events or kept.elapsed}
        over = [one for one in attempts if one not in under_way]
        if under_way:
            listener = ExpressionListener(instance, int(key), plan, handler, once=True, declared=False)
            self._restore_listener(listener, under_way)
            self._note(listener)
        else:
            over.append(key)
        self._gone.extend(StateEntry(instance.waiting_owner, one, None) for one in over)

    def _restore_listener(self, listener: ExpressionListener, attempts: Mapping[bytes, StoredAttempt]) -> None:
        instance, plan = listener.instance, listener.plan
        listener.stored = True
        instance.expressions[listener.number] = listener
        for key, kept in attempts.items():
            number = int(key.partition(b".")[2])
            events = {part: _restored(event, plan.event_type(part), instance) for part, event in kept.events.items()}
            attempt = Attempt(listener, number, Progress(events, kept.elapsed, kept.due))
            attempt.recorded = kept.events
            attempt.stored = True
            listener.attempts[attempt] = None
            instance.next_attempt = max(instance.next_attempt, number + 1)
            self._arm(attempt)


class _Kept:
    """An event that attempts keep, encoded once for all of them.

    Attributes:
        original: the event.
        data: its bytes in the store; empty until `event` was read.
    """

    __slots__ = ("_event", "data", "original")

    def __init__(self, event: Any) -> None:
        self.original = event
        self.data = b""

    @property
    def event(self) -> Any:
        """A copy that no handler can change, or the event itself if it is immutable.

        Raises:
            StateError: E4102, E4103 for an event that cannot be stored.
        """
        if not self.data:
            self.data = recorded(self.original)
            self._event = apart(self.original, self.data)
        return self._event


def _restored(data: bytes, event_type: type[Any], instance: Instance) -> Any:
    """Decode an event of an attempt. Raises `StateError` E4203 if its class has changed so that it no longer fits."""
    try:
        return msgspec.msgpack.decode(data, type=event_type)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise StateError(
            "E4203",
            f"monitor {instance.monitor.state_name}",
            f"an attempt holds an event that does not fit {event_type.__name__}: {error}",
            "State is never guessed",
            "Keep the old fields of the event class, and give new ones default values",
        ) from error


def _fail(error: Exception, _event: Any) -> None:
    raise error


def _age(hit: tuple[Attempt, list[int]]) -> tuple[int, int]:
    return hit[0].listener.number, hit[0].number


def _declaration(plan: Plan, handler: str) -> bytes:
    """The identity of a declared listener: its expression and its handler."""
    return encode((stored_parts(plan), handler), "expression")
