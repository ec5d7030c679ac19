"""Handles, threads, forks, where the library is found, and the examples of the documentation."""

import copy
import importlib.util
import multiprocessing
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import flashattn
import numpy as np
from flashattn import _abi
from flashattn._library import check_version
from flashattn.handle import handle_of

PACKAGE = Path(flashattn.__file__).parent
RNG = np.random.default_rng(31)
Q, K = RNG.standard_normal((2, 200, 4, 32), dtype=np.float32), RNG.standard_normal((2, 300, 2, 32), dtype=np.float32)


def compute(_=None):
    return flashattn.attention(Q, K, K, causal="bottom-right")


class Handles(unittest.TestCase):
    def test_parameters(self):
        with flashattn.Handle("cpu", threads=2, max_isa="generic") as handle:
            self.assertEqual((handle.backend, handle.threads, handle.max_isa), ("cpu", 2, "generic"))
            self.assertIn("generic", handle.explain() + flashattn.explain(Q, K, K, backend=handle))
            np.testing.assert_allclose(flashattn.attention(Q, K, K, causal="bottom-right", backend=handle), compute(), atol=1e-5)
            handle.threads = 1
            self.assertEqual(handle.threads, 1)
        with self.assertRaises(flashattn.InvalidArgumentError):
            flashattn.Handle("cpu", threads=-1)
        with self.assertRaisesRegex(ValueError, "max_isa is 'sse': expected 'best' or 'generic' or 'avx2'"):
            flashattn.Handle("cpu", max_isa="sse")

    def test_facts(self):
        with flashattn.Handle("cpu", max_isa="generic") as handle:
            facts = {name: handle.get(getattr(_abi, f"FA_INFO_{name}")) for name in ("BACKEND", "DEVICE", "MEMORY", "ISA")}
            expected = {"BACKEND": _abi.FA_BACKEND_CPU, "DEVICE": 0, "MEMORY": _abi.FA_MEMORY_HOST, "ISA": _abi.FA_ISA_GENERIC}
            self.assertEqual(facts, expected)
            with self.assertRaises(flashattn.InvalidArgumentError):
                handle.set(_abi.FA_INFO_ISA, 1)

    def test_a_closed_handle_is_refused(self):
        handle = flashattn.Handle("cpu")
        handle.close()
        handle.close()
        with self.assertRaisesRegex(ValueError, "the handle is closed"):
            flashattn.attention(Q, K, K, backend=handle)

    def test_it_cannot_be_copied(self):
        """Two owners would free it twice, or use it after it is freed."""
        with flashattn.Handle("cpu") as handle:
            for attempt in (copy.copy, copy.deepcopy, pickle.dumps, lambda h: copy.deepcopy({"backend": h})):
                with self.assertRaisesRegex(TypeError, "a Handle owns"):
                    attempt(handle)
            flashattn.attention(Q, K, K, backend=handle)

    def test_another_threads_call_and_close_are_refused(self):
        """The library would free what it is computing with."""
        with flashattn.Handle("cpu") as handle:
            inside, done = threading.Event(), threading.Event()
            self.addCleanup(done.set)

            def call():
                with handle._inside:  # as a call has it
                    inside.set()
                    done.wait()

            thread = threading.Thread(target=call)
            thread.start()
            inside.wait()
            for attempt in (handle.close, handle.explain, lambda: flashattn.attention(Q, K, K, backend=handle)):
                with self.assertRaises(flashattn.FlashAttnError) as caught:
                    attempt()
                self.assertEqual(caught.exception.status_name, "FA_INVALID_STATE")
            done.set()
            thread.join()
            flashattn.attention(Q, K, K, backend=handle)

    def test_a_thread_keeps_its_handle(self):
        self.assertIs(handle_of(None), handle_of("auto"))
        self.assertIsNot(handle_of("auto"), handle_of("cpu"))

    def test_an_unknown_device(self):
        with self.assertRaises(flashattn.FlashAttnError) as caught:
            flashattn.Handle("cpu", device=7)
        self.assertEqual(caught.exception.status_name, "FA_NO_DEVICE")

    def test_what_there_is(self):
        self.assertEqual(flashattn.version(), flashattn.__version__)
        backends = flashattn.backends()
        self.assertEqual(list(backends), ["cpu", "cuda", "hip"])
        self.assertTrue(backends["cpu"].usable)
        self.assertGreaterEqual(backends["cpu"].devices[0].compute_units, 1)
        for backend in backends.values():
            self.assertTrue(backend.reason)
            self.assertEqual(backend.usable, bool(backend.devices))

    def test_explain(self):
        self.assertIn("backend", flashattn.explain())
        self.assertIn("kernel", flashattn.explain(Q, K, K, causal="top-left"))
        with self.assertRaises(flashattn.InvalidArgumentError):
            flashattn.explain(Q, K, K, softcap=-1)
        with self.assertRaises(TypeError):
            flashattn.explain(Q, K, K, causl=1)


class Threads(unittest.TestCase):
    def test_eight_threads_with_their_own_handles(self):
        expected = compute()
        results, pointers = [None] * 8, [None] * 8
        barrier = threading.Barrier(8)

        def work(n):
            barrier.wait()
            for _ in range(5):
                results[n] = compute()
            pointers[n] = handle_of(None).pointer
            barrier.wait()  # all handles exist at once, so no address is used twice

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(set(pointers)), 8)
        for result in results:
            np.testing.assert_array_equal(result, expected)

    def test_errors_stay_with_their_thread(self):
        messages = {}

        def work(softcap):
            try:
                flashattn.attention(Q, K, K, softcap=softcap)
            except flashattn.FlashAttnError as error:
                messages[softcap] = str(error)

        threads = [threading.Thread(target=work, args=(-1.0 - n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for softcap, message in messages.items():
            self.assertIn(f"softcap is {softcap:g}", message)
        self.assertEqual(len(messages), 8)


def in_child(handle):
    try:
        flashattn.attention(Q, K, K, backend=handle)
    except flashattn.FlashAttnError as error:
        return error.status_name
    return "no error"


class Forks(unittest.TestCase):
    def test_a_forked_child_computes_the_same(self):
        expected = compute()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            for result in pool.map(compute, range(4)):
                np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(compute(), expected)

    def test_a_parents_own_handle_is_refused_in_the_child(self):
        with flashattn.Handle("cpu") as handle:
            flashattn.attention(Q, K, K, backend=handle)
            context = multiprocessing.get_context("fork")
            queue = context.SimpleQueue()
            child = context.Process(target=lambda: queue.put(in_child(handle)))
            child.start()
            self.assertEqual(queue.get(), "FA_INVALID_STATE")
            child.join()
            self.assertEqual(child.exitcode, 0)


class Finding(unittest.TestCase):
    """Each in a process of its own, which has not loaded a library yet."""

    def run_python(self, code, package=PACKAGE, **environment):
        clean = {name: value for name, value in os.environ.items() if name not in ("FLASHATTN_LIBRARY", "LD_LIBRARY_PATH")}
        return subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**clean, "PYTHONPATH": str(package.parent), **environment},
        )

    def test_by_variable_beside_the_package_and_by_the_loader(self):
        real = os.environ["FLASHATTN_LIBRARY"]
        code = "import flashattn; print(flashattn.version())"
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "flashattn")
            shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so*"))
            by_variable = self.run_python(code, copy, FLASHATTN_LIBRARY=real)
            Path(folder, "elsewhere").mkdir()
            shutil.copy(real, Path(folder, "elsewhere", "libflashattn.so.0"))
            by_loader = self.run_python(code, copy, LD_LIBRARY_PATH=str(Path(folder, "elsewhere")))
            wrong = self.run_python(
                code, copy, FLASHATTN_LIBRARY="/nowhere/libflashattn.so", LD_LIBRARY_PATH=str(Path(folder, "elsewhere"))
            )
            shutil.copy(real, copy / "libflashattn.so.0")
            beside = self.run_python(code, copy)
        for result in (by_variable, by_loader, beside):
            self.assertEqual((result.stdout.strip(), result.returncode), (flashattn.version(), 0), result.stderr)
        self.assertNotEqual(wrong.returncode, 0)
        self.assertIn("/nowhere/libflashattn.so", wrong.stderr)

    def test_another_abi_is_refused(self):
        """What runs is the package's own version, or a later one with the same SONAME."""
        own = _abi.FA_VERSION
        for version in (own, own + 1, own + 100, 9999):
            check_version(version)
        for version in (own - 1, 101, 10000, 10000 + own):
            with self.assertRaisesRegex(OSError, r"libflashattn is version \d+\.\d+\.\d+: this package was written for"):
                check_version(version)
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder, "old.c"), Path(folder, "libflashattn.so.0")
            source.write_text("int fa_version(void) { return 104; }")
            subprocess.run([*os.environ.get("CC", "cc").split(), "-shared", "-fPIC", source, "-o", library], check=True)
            old = self.run_python("import flashattn; flashattn.version()", FLASHATTN_LIBRARY=str(library))
        self.assertIn("OSError: libflashattn is version 0.1.4", old.stderr)

    def test_none_says_what_to_do(self):
        if self.run_python("import ctypes; ctypes.CDLL('libflashattn.so.0')").returncode == 0:
            self.skipTest("a libflashattn is installed on this machine")
        result = self.run_python("import flashattn; flashattn.attention")  # importing needs no library
        self.assertEqual(result.returncode, 0, result.stderr)
        result = self.run_python("import flashattn; flashattn.version()")
        self.assertIn("give the path of the library in FLASHATTN_LIBRARY", result.stderr)
        modules = [name for name in ("torch", "jax") if importlib.util.find_spec(name)]
        for code in ("from flashattn._library import require; require('flashattn')", *(f"import flashattn.{name}" for name in modules)):
            result = self.run_python(code)
            self.assertRegex(result.stderr, "ImportError: flashattn.* needs libflashattn: .*give the path of the library in FLASHATTN_LIBRARY")
            result = self.run_python(code, FLASHATTN_LIBRARY="/nowhere/libflashattn.so")
            self.assertRegex(result.stderr, "ImportError: .*FLASHATTN_LIBRARY is /nowhere/libflashattn.so, which cannot be loaded")


class Unloading(unittest.TestCase):
    def test_a_library_that_is_closed_stays_for_its_threads(self):
        code = """
import _ctypes, ctypes, os, time
import flashattn, numpy
from flashattn._library import library

q = numpy.ones((1, 64, 4, 16), numpy.float32)
with flashattn.Handle("cpu", threads=3) as handle:
    flashattn.attention(q, q, q, backend=handle)
_ctypes.dlclose(library()._handle)
time.sleep(0.1)
ctypes.CDLL(os.environ["FLASHATTN_LIBRARY"], mode=os.RTLD_NOLOAD | os.RTLD_NOW)  # OSError where it has gone
library.cache_clear()
with flashattn.Handle("cpu", threads=3) as handle:
    print(flashattn.attention(q, q, q, backend=handle).sum())
"""
        result = subprocess.run([sys.executable, "-u", "-c", code], capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stdout), (0, "4096.0\n"), result.stderr)


class Documentation(unittest.TestCase):
    def test_examples_run(self):
        readme = (PACKAGE.parent / "README.md").read_text()
        blocks = re.findall(r"```python\n(.*?)```", readme, flags=re.S)
        blocks.append(
            re.search(r"\n    import numpy.*?\n\n(?=The C library)", flashattn.__doc__, flags=re.S).group(0).replace("\n    ", "\n")
        )
        self.assertEqual(len(blocks), 3)
        names = {}
        for block in blocks:  # each goes on where the last one ended
            exec(block, names)
            self.assertTrue(np.isfinite(names["lse"]).all() and np.isfinite(names["out"]).all())

    def test_the_first_example_runs(self):
        blocks = re.findall(r"```python\n(.*?)```", (PACKAGE.parents[2] / "README.md").read_text(), flags=re.S)
        self.assertEqual(len(blocks), 1)
        names = {}
        exec(blocks[0], names)
        self.assertEqual((names["out"].shape, names["lse"].shape), ((2, 1024, 8, 64), (2, 8, 1024)))

    def test_minimal(self):
        example = PACKAGE.parents[2] / "examples" / "minimal.py"
        result = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, check=True)
        self.assertEqual(result.stdout.splitlines()[0], "row 0 head 0: 0.0000 0.1250")
        self.assertEqual(len(result.stdout.splitlines()), 8)


if __name__ == "__main__":
    unittest.main()
