"""Task `claim`: take a slot, and wait for one without costing the run that holds it anything.

A sensor in reschedule mode starts a process at every look: on two cores, looking every 5 s took 30 % of the machine
away from the run being measured. So a claim that finds no slot is deferred. The triggerer, which runs anyway, reads two
small files every few seconds and keeps the run's place in the queue. When a slot looks free, and now and then to show
the place anew, the claim itself is asked again; only it decides.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent
from armwise_connection import use_connection

FORM = ("arm", "target", "plan", "repeat")
LOOK_EVERY_S = 3.0
ASK_AGAIN_AFTER_S = 300.0


class Claim(BaseOperator):
    """Returns the run folder's path. Fails at once, in words, for whatever is not a matter of waiting."""

    def execute(self, context: Context, event: Any = None) -> str:
        from tasks import target
        from tasks.lease import SlotBusy
        from tasks.stages.claim import claim, run_id

        del event
        params, key = context["params"], context["dag_run"].run_id
        if unknown := sorted({*params} - {*FORM}):
            raise AirflowFailException(f"no field {', '.join(unknown)} in the form; known: {', '.join(FORM)}")
        use_connection()
        try:
            return str(claim(**{name: params[name] for name in FORM}, key=key))
        except SlotBusy as busy:
            print(f"waiting: {busy}", flush=True)
        slots = target.load(params["target"]).slots
        trigger = SlotTrigger(target=params["target"], slots=slots, waiting_as=run_id(params["arm"], key))
        self.defer(trigger=trigger, method_name="execute")


class SlotTrigger(BaseTrigger):
    """Fires when asking for a slot again is worth it."""

    def __init__(self, *, target: str, slots: list[str], waiting_as: str) -> None:
        super().__init__()
        self.target, self.slots, self.waiting_as = target, slots, waiting_as

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "armwise_claim.SlotTrigger", {
            "target": self.target,
            "slots": self.slots,
            "waiting_as": self.waiting_as,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from tasks.lease import SlotBusy, worth_asking

        deadline = time.monotonic() + ASK_AGAIN_AFTER_S
        while time.monotonic() < deadline:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                if await asyncio.to_thread(worth_asking, self.target, self.slots, self.waiting_as):
                    break
            except SlotBusy:  # another claim is at work on the slot's file
                continue
        yield TriggerEvent(None)
