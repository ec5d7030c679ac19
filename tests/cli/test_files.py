"""What becomes of the files that the tool writes: links, modes, leftovers; and - for standard input and output."""

import io
import os
import signal
import stat
import subprocess
import time
import unittest

import numpy as np

from tool import TOOL, ToolCase

INPUTS = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy")


class Files(ToolCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        self.save(**{name: rng.standard_normal((1, 5, 1, 4)).astype("f4") for name in "qkv"})
        self.output_of("run", *INPUTS, "--out", "want.npy", "--lse", "want_lse.npy")
        self.want, self.want_lse = self.load("want"), self.load("want_lse")

    def run_to(self, out):
        self.assertEqual(self.output_of("run", *INPUTS, "--out", out), "")

    def mode(self, name):
        return stat.S_IMODE((self.folder / name).stat().st_mode)


class Outputs(Files):
    def test_an_old_file_keeps_its_mode(self):
        for mode in (0o600, 0o640, 0o666, 0o400):
            self.save(o=self.want + 1)
            (self.folder / "o.npy").chmod(mode)
            self.run_to("o.npy")
            self.assertEqual(oct(self.mode("o.npy")), oct(mode))
            np.testing.assert_array_equal(self.load("o"), self.want)
            (self.folder / "o.npy").unlink()

    def test_a_new_file_has_the_mode_of_any_other(self):
        for mask in (0o022, 0o077):
            before = os.umask(mask)
            try:
                self.run_to(f"{mask}.npy")
            finally:
                os.umask(before)
            self.assertEqual(oct(self.mode(f"{mask}.npy")), oct(0o666 & ~mask))

    @unittest.skipUnless(os.geteuid() == 0, "only root can give a file away")
    def test_an_old_file_keeps_its_owner_and_group(self):
        self.save(o=self.want)
        try:
            os.chown(self.folder / "o.npy", 12345, 23456)
        except PermissionError as reason:
            self.skipTest(str(reason))
        self.run_to("o.npy")
        found = (self.folder / "o.npy").stat()
        self.assertEqual((found.st_uid, found.st_gid), (12345, 23456))

    def test_links_stay_and_what_they_name_is_written(self):
        (self.folder / "there").mkdir()
        (self.folder / "there" / "old.npy").write_bytes(b"old")
        (self.folder / "there" / "old.npy").chmod(0o600)
        for link, target in (("absolute.npy", self.folder / "there" / "old.npy"), ("relative.npy", "there/old.npy"),
                             ("dangling.npy", "there/new.npy"),
                             ("there/up.npy", "../of_link.npy"), ("of_link.npy", "there/onward.npy"), ("there/onward.npy", "last.npy")):
            (self.folder / link).symlink_to(target)
        for link, file in (("absolute.npy", "there/old.npy"), ("relative.npy", "there/old.npy"), ("dangling.npy", "there/new.npy"),
                           ("there/up.npy", "there/last.npy")):
            with self.subTest(link=link):
                self.run_to(link)
                self.assertTrue((self.folder / link).is_symlink())
                self.assertFalse((self.folder / file).is_symlink())
                np.testing.assert_array_equal(np.load(self.folder / file), self.want)
        self.assertEqual(oct(self.mode("there/old.npy")), oct(0o600))

    def test_a_loop_of_links_is_refused(self):
        (self.folder / "a.npy").symlink_to("b.npy")
        (self.folder / "b.npy").symlink_to("a.npy")
        self.assert_sentence(self.run_tool("run", *INPUTS, "--out", "a.npy"), "a.npy", "cannot be written")

    def test_a_link_that_lies_in_wait_is_not_followed(self):
        """Under the name that the process number gives away."""
        victim = self.folder / "victim"
        victim.write_text("precious")
        subprocess.run(["sh", "-c", f'for name in o.npy.$$ o.npy.$$.partial $$.partial; do ln -s victim $name; done; exec "{TOOL}" run '
                        + " ".join(INPUTS) + " --out o.npy"], cwd=self.folder, check=True, timeout=240)
        self.assertEqual(victim.read_text(), "precious")
        self.assertFalse((self.folder / "o.npy").is_symlink())
        np.testing.assert_array_equal(self.load("o"), self.want)

    def test_the_longest_name_can_be_written(self):
        name = "o" * 251 + ".npy"
        self.run_to(name)
        self.assertTrue((self.folder / name).exists())


class Unfinished(Files):
    """A run that has opened its output and waits: its second output is a pipe that nobody reads."""

    def start(self, ignored=None):
        os.mkfifo(self.folder / "pipe")
        before = set(self.names())
        process = subprocess.Popen([TOOL, "run", *INPUTS, "--out", "o.npy", "--lse", "pipe"], cwd=self.folder, stderr=subprocess.PIPE,
                                   preexec_fn=lambda: ignored and signal.signal(ignored, signal.SIG_IGN))
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        for _ in range(6000):
            unfinished = set(self.names()) - before
            if unfinished:
                break
            self.assertIsNone(process.poll(), "ended early")
            time.sleep(0.01)
        self.assertEqual(len(unfinished), 1, "no output was opened")
        return process, unfinished.pop()

    def test_is_removed_when_a_signal_ends_the_tool(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(signal=number):
                before = self.names()
                process, _ = self.start()
                process.send_signal(number)
                self.assertEqual(process.wait(timeout=60), -number)
                (self.folder / "pipe").unlink()
                self.assertEqual(self.names(), before)

    def test_is_kept_where_the_signal_is_ignored(self):
        process, _ = self.start(ignored=signal.SIGHUP)  # as nohup does
        process.send_signal(signal.SIGHUP)
        lse = np.load(io.BytesIO((self.folder / "pipe").read_bytes()))
        self.assertEqual(process.wait(timeout=60), 0)
        np.testing.assert_array_equal(lse, self.want_lse)
        np.testing.assert_array_equal(self.load("o"), self.want)

    def test_has_no_name_to_foresee_and_no_more_rights_than_the_old(self):
        self.save(o=self.want)
        (self.folder / "o.npy").chmod(0o600)
        names = []
        for _ in range(2):
            process, name = self.start()
            self.assertNotIn(str(process.pid), name.replace("0", ""))
            self.assertEqual(oct(self.mode(name)), oct(0o600))
            process.terminate()
            process.wait(timeout=60)
            (self.folder / "pipe").unlink()
            names.append(name)
        self.assertNotEqual(*names)
        np.testing.assert_array_equal(self.load("o"), self.want)


class Standard(Files):
    def test_every_input(self):
        rng = np.random.default_rng(1)
        self.save(bias=rng.standard_normal((5, 5)).astype("f4"), mask=rng.random((5, 5)) < 0.7, sinks=np.ones(1, "f4"),
                  cu=np.array([0, 2, 5], "i4"))
        for name in ("q", "k", "v"):
            np.save(self.folder / f"packed_{name}.npy", self.load(name)[0])
        padded = [*INPUTS, "--bias", "bias.npy", "--mask", "mask.npy", "--sinks", "sinks.npy"]
        packed = [*(word if word.startswith("--") else "packed_" + word for word in INPUTS), "--cu-seqlens-q", "cu.npy", "--cu-seqlens-k",
                  "cu.npy"]
        for options in (padded, packed):
            self.output_of("run", *options, "--out", "o.npy")
            for at in range(1, len(options), 2):
                with self.subTest(option=options[at - 1]):
                    done = self.run_tool("run", *options[:at], "-", *options[at + 1:], "--out", "-", text=False,
                                         stdin=(self.folder / options[at]).read_bytes())
                    self.assertEqual((done.returncode, done.stderr), (0, b""))
                    np.testing.assert_array_equal(np.load(io.BytesIO(done.stdout)), self.load("o"))
        self.assertNotIn("-", self.names())

    def test_either_output(self):
        for out, lse, want in (("-", "lse.npy", self.want), ("o.npy", "-", self.want_lse)):
            done = self.run_tool("run", *INPUTS, "--out", out, "--lse", lse, text=False)
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            np.testing.assert_array_equal(np.load(io.BytesIO(done.stdout)), want)
        np.testing.assert_array_equal(self.load("o"), self.want)
        np.testing.assert_array_equal(self.load("lse"), self.want_lse)

    def test_holds_one_thing_at_a_time(self):
        for options, *words in (
                (["--q", "-", "--k", "-", "--v", "v.npy", "--out", "o.npy"], "--q", "--k"),
                ([*INPUTS, "--out", "o.npy", "--bias", "-", "--sinks", "-"], "--bias", "--sinks"),
                ([*INPUTS, "--out", "-", "--lse", "-"], "--out", "--lse"), ([*INPUTS, "--out", "-", "--explain"], "--out", "--explain"),
                ([*INPUTS, "--out", "o.npy", "--lse", "-", "--explain"], "--lse", "--explain")):
            done = self.run_tool("run", *options, stdin="")
            self.assert_sentence(done, *words)
            self.assertEqual(done.returncode, 2)

    def test_that_cannot_be_written(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([TOOL, "run", *INPUTS, "--out", "-"], cwd=self.folder, stdout=full, stderr=subprocess.PIPE, text=True,
                                  check=False)
        self.assertEqual((done.returncode, done.stderr), (1, "flashattn: standard output: cannot be written: No space left on device\n"))


class Log(Files):
    def test_goes_to_standard_error(self):
        done = self.run_tool("run", *INPUTS, "--out", "o.npy", "--backend", "cpu", env={"FLASHATTN_LOG": "debug"})
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertRegex(done.stderr, r"\Aflashattn: info: backend cpu, .*\n(flashattn: debug: .*\n)+\Z")
        self.assertIn("flashattn: debug: fa_forward_ex: batch 1", done.stderr)

    def test_or_to_a_file(self):
        done = self.run_tool("run", *INPUTS, "--out", "o.npy", "--backend", "cpu",
                             env={"FLASHATTN_LOG": "info", "FLASHATTN_LOG_FILE": "log"})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex((self.folder / "log").read_text(), r"\Aflashattn \d+ info: backend cpu, .*\n\Z")

    def test_a_level_that_is_none_is_told_and_stops_nothing(self):
        done = self.run_tool("run", *INPUTS, "--out", "o.npy", env={"FLASHATTN_LOG": "loud"})
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertRegex(done.stderr, r'\A[^\n]*FLASHATTN_LOG is "loud"[^\n]*\n\Z')
        np.testing.assert_array_equal(self.load("o"), self.want)


if __name__ == "__main__":
    unittest.main()
