"""How much there is to do: suites by name, and on how many threads each. Pure."""

from __future__ import annotations

# name: what a row of it compares
SUITES = {
    "ceilings": "against what the machine can do, by `flashattn bench`: multiply-adds, AMX, reading K and V; tiny calls; AVX2",
    "scaling": "all threads against one, each as a share of its ceiling, by `flashattn bench`",
    "prefill": "as many rows as keys, against torch's FLASH and MATH, and onnxruntime; causal against this library's dense calls",
    "backward": "gradients of as many rows as keys, against torch's FLASH",
    "decode": "one query row, against torch and onnxruntime, K and V hot and from memory",
    "models": "bf16 and f32 at head dimensions of models, against torch",
    "packed": "many sequences of 8 to 128, against torch on a padded batch",
    "options": "masks, biases and pages against this library's plain call at equal work",
}
ON_EACH_THREAD_COUNT = {"prefill", "backward", "decode", "ceilings"}  # the others on the largest
BY_TOOL = {"ceilings", "scaling"}  # by `flashattn bench`
COLD_BYTES = 1e9  # sets of K and V that rotate add up to this, more than a server's L3 holds


def parse_threads(text: str, available: int) -> list[int]:
    """'1,all' in ascending order."""
    counts = {available if word.strip() == "all" else int(word) for word in text.split(",") if word.strip()}
    if not counts or min(counts) < 1:
        raise ValueError(f"threads {text!r}: expected numbers from 1 on, or all, such as 1,all")
    return sorted(counts)


def jobs_of(suites: list[str], threads: list[int]) -> list[str]:
    """'prefill, 1 thread' and so on. Scaling needs two counts to compare. The tool's own suites come first: a worker that has once had
    a team of threads may leave them spinning on the cores, and the tool, another process, would find them taken."""
    jobs = []
    for suite in sorted(suites, key=lambda name: name not in BY_TOOL):
        for count in threads:
            if suite == "scaling" and (count == 1 or threads[0] != 1):
                continue
            if suite in ON_EACH_THREAD_COUNT or count == threads[-1]:
                jobs.append(job_name(suite, count))
    return jobs


def job_name(suite: str, threads: int) -> str:
    return f"{suite}, {threads} thread{'s' if threads > 1 else ''}"


def parse_job(job: str) -> tuple[str, int]:
    suite, count = job.split(", ")
    return suite, int(count.split()[0])


def heads_for(n: int, threads: int) -> int:
    """Enough row tiles for every thread, and calls of some tens of milliseconds."""
    return 16 if n <= 512 else max(8192 // n, min(threads, 16) * 2048 // n)
