"""The processes of one contender: started once, then sent commands."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from typing import Any

from lpcompile.bench.contenders.ways import PLAIN, THREADS
from lpcompile.bench.contenders.work import WorkSpec
from lpcompile.bench.rank import serve
from lpcompile.core.plan import Plan
from lpcompile.errors import LpError, TrainingError
from lpcompile.runtime.launch import launch
from lpcompile.runtime.launch.hosts import Hosts

POLL = 0.2  # seconds between checks that a contender is still alive


class Team:
    """All ranks of a contender and the thread that supervises them; `ask` raises their failure."""

    def __init__(
        self, name: str, spec: WorkSpec, plan: Plan | None, timeout: float, hosts: Hosts | None = None
    ) -> None:
        self.name, self.world = name, 1 if name in (PLAIN, THREADS) else spec.K
        pairs = [multiprocessing.Pipe() for _ in range(self.world)]
        self.pipes = [mine for mine, _ in pairs]
        self.error: BaseException | None = None
        given = (name, spec, plan.to_json() if plan is not None else None, [theirs for _, theirs in pairs])

        def supervise() -> None:
            try:
                launch.launch(
                    serve, given, world=self.world, K=self.world, device=spec.device, timeout=timeout, hosts=hosts
                )
            except BaseException as error:  # for the thread that asks
                self.error = error

        self.thread = threading.Thread(target=supervise, name=f"bench {name}", daemon=True)
        self.thread.start()

    def ask(self, command: str, value: Any = None) -> list[dict[str, Any]]:
        """Send a command to all ranks; gives their answers."""
        for pipe in self.pipes:
            pipe.send((command, value))
        return self.answers()

    def answers(self) -> list[dict[str, Any]]:
        found = []
        for pipe in self.pipes:
            while not pipe.poll(POLL):
                if not self.thread.is_alive():
                    raise self._failure()
            found.append(pipe.recv())
        return found

    def _failure(self) -> LpError:
        if isinstance(self.error, LpError):
            return self.error
        return TrainingError(f"{self.name} ended: {self.error or 'without a reason'}")

    def end(self) -> None:
        """End all processes."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(("end", None))
        self.thread.join()
        for pipe in self.pipes:
            pipe.close()
