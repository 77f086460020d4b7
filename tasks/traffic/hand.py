"""A worker of Locust's distributed mode: opens a level when the master said, and tells of it when it has ended."""

import time
from typing import Any

import gevent

from tasks.traffic.conduct import Tier, one_level, wait
from tasks.traffic.lead import ENDED, EXIT_FAULT, EXIT_STOPPED, HELLO, OPEN, STOP

GATE_WITHIN_S = 5.0  # after the level's first moment: the users that Locust has spawned are at the gate by then


class Hand:
    """One worker process and its levels."""

    def __init__(self, tier: Tier, environment: Any) -> None:
        self.tier, self.environment = tier, environment
        self.is_playing = False
        environment.process_exit_code = 0
        environment.runner.register_message(OPEN, self._open)
        environment.runner.register_message(STOP, self._stop)
        environment.runner.send_message(HELLO, {"process": tier.process})

    def _open(self, environment: Any, msg: Any, **_: Any) -> None:  # noqa: ARG002
        self.is_playing = True
        gevent.spawn(self._play, msg.data)

    def _stop(self, environment: Any, msg: Any, **_: Any) -> None:  # noqa: ARG002
        self.tier.stop()

    def _play(self, told: dict[str, Any]) -> None:
        try:
            users, start_ns = told["users"], told["t_start_ns"]
            if not wait(lambda: self.tier.waiting == users, until_ns=start_ns + int(GATE_WITHIN_S * 1e9)):
                raise RuntimeError(f"{self.tier.waiting} users wait in process {self.tier.process}, wanted {users}")
            note = one_level(self.tier, told["level"], t_start_ns=start_ns, first_seat=told["first_seat"])
            self.environment.runner.send_message(ENDED, note)
        except Exception as error:  # noqa: BLE001 (the master waits for a word and gets this process's end instead)
            self.tier.fail(error)
            print(f"client process {self.tier.process}: {self.tier.fault}", flush=True)
            self.environment.runner.quit()
        finally:
            self.is_playing = False
            self.environment.process_exit_code = self._exit_code()

    def _exit_code(self) -> int:
        return EXIT_FAULT if self.tier.fault else EXIT_STOPPED if self.tier.is_stopped else 0

    def stop(self, *, within_s: float) -> None:
        """End what is played as if its drain were over."""
        self.tier.stop()
        wait(lambda: not self.is_playing, until_ns=time.monotonic_ns() + int(within_s * 1e9))
