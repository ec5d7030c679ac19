"""Clock and power of a GPU while a rival runs: what says whether it was slow, or the device at its limit. Samples come from nvidia-smi,
which every driver brings; where it is missing or will not tell, there are none. To ask a device costs whoever launches kernels meanwhile:
nothing is asked while anything is timed."""

from __future__ import annotations

import shutil
import signal
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


def ending_with_us(command: list[str]) -> list[str]:
    """It ends when this process does, however that ends: stopped, it would stay."""
    return ["setpriv", "--pdeathsig", "KILL", *command] if shutil.which("setpriv") else command


class Sensors:
    def __init__(self, device: str, query: list[str] = QUERY) -> None:
        """device: its UUID, for processes count devices differently."""
        self.samples: deque[tuple[float, float, float]] = deque(maxlen=1024)  # when, and what: longer than a block takes
        self.process = None
        if not shutil.which(query[0]):
            return
        self.process = subprocess.Popen(ending_with_us([*query, "--id", device]), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True)
        threading.Thread(target=self.listen, daemon=True).start()
        self.process.send_signal(signal.SIGSTOP)

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

    def watch(self, contestant: Contestant, milliseconds: float) -> None:
        """Runs it once more, and leaves with it what was sampled meanwhile, but for the first third, at the clocks that others left."""
        if not self.process:
            return
        self.process.send_signal(signal.SIGCONT)
        begin = time.perf_counter()
        contestant.block(milliseconds)
        end = time.perf_counter()
        self.process.send_signal(signal.SIGSTOP)
        contestant.samples = [sample[1:] for sample in list(self.samples) if begin + (end - begin) / 3 <= sample[0] <= end]
