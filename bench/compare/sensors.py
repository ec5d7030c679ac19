"""Clock and power of a GPU while others use it: what says whether a rival was slow, or the device tired. Samples come from nvidia-smi,
which every driver brings; where it is missing or will not tell, there are none."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import deque

from .judge import Contestant

PERIOD = 20  # milliseconds
QUERY = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw.instant", "--format=csv,noheader,nounits", f"--loop-ms={PERIOD}"]


def sample_of(line: str) -> tuple[float, float] | None:
    """MHz and watts; None for what is no sample."""
    try:
        clock, power = (float(cell) for cell in line.split(","))
    except ValueError:
        return None
    return clock, power


class Sensors:
    def __init__(self, device: str, query: list[str] = QUERY) -> None:
        """device: its UUID, for processes count devices differently."""
        self.samples: deque[tuple[float, float, float]] = deque(maxlen=1024)  # when, and what: longer than a block takes
        self.process = None
        try:
            self.process = subprocess.Popen([*query, "--id", device], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        with self.process.stdout as lines:
            for line in lines:
                sample = sample_of(line)
                if sample:
                    self.samples.append((time.perf_counter(), *sample))

    def close(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()

    def watch(self, contestant: Contestant) -> None:
        """Its blocks leave what was sampled meanwhile, but for a block's first third, which does not count for its time either."""
        block = contestant.block

        def watched(milliseconds: float) -> float:
            begin = time.perf_counter()
            seconds = block(milliseconds)
            counts = begin + (time.perf_counter() - begin) / 3
            contestant.samples += [sample[1:] for sample in list(self.samples) if sample[0] >= counts]
            return seconds

        contestant.block = watched
