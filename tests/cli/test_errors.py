"""Bad input of every kind: one sentence on standard error, a status that is not 0, and no file that was not there before."""

import os
import re
import subprocess
import unittest

import numpy as np

from tool import TOOL, ToolCase

FILES = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy")


def ones(*shape, dtype="f4"):
    return np.ones(shape, dtype)


class Errors(ToolCase):
    def setUp(self):
        super().setUp()
        self.save(q=ones(2, 5, 4, 8), k=ones(2, 7, 2, 8), v=ones(2, 7, 2, 6))

    def refuse(self, args, *words, status=(1,)):
        before = self.names()
        done = self.run_tool("run", *args)
        self.assert_sentence(done, *words)
        self.assertIn(done.returncode, status)
        self.assertEqual(self.names(), before)

    def refuse_options(self, rows, files=FILES, status=(2,)):
        for options, *words in rows:
            with self.subTest(options=options):
                self.refuse([*files, "--out", "o.npy", "--lse", "lse.npy", *options.split()], *words, status=status)

    def test_the_call_is_right_before_it_is_spoiled(self):
        self.output_of("run", *FILES, "--out", "o.npy")

    def test_numbers(self):
        self.refuse_options([
            ("--scale nan", "--scale", "'nan'", "finite"), ("--scale inf", "--scale"), ("--scale -inf", "--scale"), ("--scale 1x", "1x"),
            ("--scale 1e39", "float32", "1e39"), ("--scale -1e-46", "float32", "-1e-46"), ("--scale 0x1p3", "--scale"),
            ("--softcap nan", "--softcap"),
            ("--softcap -1", "--softcap", "-1"), ("--softcap 0", "--softcap"), ("--softcap 1e-60", "--softcap", "1e-60"),
            ("--threads 2.5", "--threads", "2.5"), ("--threads 99999999999999999999", "--threads"),
            ("--num-splits -1", "--num-splits"), ("--num-splits 3000000000", "--num-splits"), ("--num-splits two", "--num-splits"),
            ("--window 1 --align top-left", "--window"), ("--window 1,2,3 --align top-left", "--window"),
            ("--window a,b --align top-left", "--window"),
            ("--window -2,1 --align top-left", "--window"), ("--window 1, --align top-left", "--window"),
            ("--window nan,1 --align top-left", "--window"),
            ("--window 99999999999999999999,1 --align top-left", "--window")])
        by_the_library = [("--threads -1", "threads", "-1"), ("--threads 100000", "threads", "100000")]
        self.refuse_options(by_the_library, status=(1,))

    def test_an_empty_value_is_not_no_value(self):
        for option in ("--q", "--out", "--lse", "--bias", "--bias-scale", "--mask", "--sinks", "--cu-seqlens-q", "--cu-seqlens-k",
                       "--window", "--scale",
                       "--causal", "--align", "--layout", "--dtype", "--backend", "--threads"):
            with self.subTest(option=option):
                self.refuse([*FILES, "--out", "o.npy", option, ""] if option not in ("--q", "--out") else
                            [*FILES[2:], option, "", *(("--out", "o.npy") if option == "--q" else FILES[:2])], option, status=(2,))

    def test_names(self):
        self.refuse_options([
            ("--causal middle", "--causal", "middle", "top-left|bottom-right"), ("--align none", "--align"), ("--layout hbsd", "--layout"),
            ("--backend tpu", "--backend", "tpu"), ("--algorithm flash3", "--algorithm"), ("--dtype f64", "--dtype", "f64"),
            ("--out-dtype i8", "--out-dtype")])

    def test_alignment_is_never_guessed(self):
        self.refuse_options([
            ("--window 1,2", "--window", "--align"), ("--alibi", "--alibi", "--align"),
            ("--causal top-left --align bottom-right", "--causal", "--align")])

    def test_backends_that_are_not_here(self):
        for name in ("cuda", "hip"):
            done = self.run_tool("run", *FILES, "--out", "o.npy", "--backend", name)
            if done.returncode == 0:
                continue  # it is here
            self.assert_sentence(done, name)
            self.assertFalse((self.folder / "o.npy").exists())

    def test_shapes(self):
        rows = [({"q": ones(5, 4, 8)}, "--q", "(5, 4, 8)", "(batch, seq, heads, dim)"), ({"q": ones(8)}, "--q", "(8,)"),
                ({"q": np.float32(1)}, "--q", "()"), ({"k": ones(2, 7, 2, 9)}, "last axis", "(2, 7, 2, 9)"),
                ({"v": ones(2, 6, 2, 6)}, "--v", "(2, 6, 2, 6)"), ({"v": ones(2, 7, 1, 6)}, "--v"), ({"v": ones(3, 7, 2, 6)}, "--v"),
                ({"q": ones(3, 5, 4, 8)}, "3 sequences", "2"), ({"q": ones(2, 5, 3, 8)}, "heads_k", "2", "3"),
                ({"q": ones(2, 5, 4, 0), "k": ones(2, 7, 2, 0)}, "dim"), ({"v": ones(2, 7, 2, 0)}, "--v", "at least one"),
                ({"k": ones(2, 7, 0, 8), "v": ones(2, 7, 0, 6)}, "at least one"), ({"q": ones(2, 5, 0, 8)}, "heads_q"),
                ({"q": ones(2, 1, 4, 1025), "k": ones(2, 1, 2, 1025), "v": ones(2, 1, 2, 6)}, "1025", "1024")]
        for arrays, *words in rows:
            with self.subTest(words=words):
                self.setUp()
                self.save(**arrays)
                self.refuse([*FILES, "--out", "o.npy"], *words)

    def test_types(self):
        rows = [({"q": ones(2, 5, 4, 8, dtype="f8")}, "", "--q", "float64", "astype"),
                ({"v": ones(2, 7, 2, 6, dtype="f2")}, "", "same type"),
                ({"k": ones(2, 7, 2, 8, dtype="i4")}, "", "--k", "int32"), ({"q": ones(2, 5, 4, 8, dtype="u2")}, "", "--dtype bf16"),
                ({}, "--dtype bf16", "--q", "float32", "bf16"), ({}, "--dtype f16", "float32", "f16"),
                ({"q": ones(2, 5, 4, 8, dtype="u2")}, "--dtype f32", "uint16"), ({"k": ones(2, 7, 2, 8, dtype="?")}, "", "bool")]
        for arrays, options, *words in rows:
            with self.subTest(words=words):
                self.setUp()
                self.save(**arrays)
                self.refuse([*FILES, "--out", "o.npy", *options.split()], *words)

    def test_operands(self):
        full = "(2, 4, 5, 7)"
        rows = [({"bias": ones(6, 7)}, "--bias", "(6, 7)", full), ({"bias": ones(1, 2, 4, 5, 7)}, "--bias", full),
                ({"bias": ones(7, 5)}, full),
                ({"bias": ones(2, 2, 5, 7)}, full), ({"bias": ones(5, 7, dtype="f8")}, "float64"),
                ({"bias": ones(5, 7, dtype="u2")}, "bf16"),
                ({"bias": ones(5, 7), "bias-scale": ones(3)}, "--bias-scale", "(3,)", "(4,)"),
                ({"mask": ones(6, 7, dtype="?")}, "--mask", full), ({"mask": ones(5, 7)}, "--mask", "float32", "bool"),
                ({"sinks": ones(3)}, "--sinks", "(3,)", "(4,)"), ({"sinks": ones(2, 4)}, "--sinks"),
                ({"sinks": ones(4, dtype="f2")}, "float16")]
        for arrays, *words in rows:
            with self.subTest(words=words):
                self.save(**arrays)
                self.refuse([*FILES, "--out", "o.npy", *(option for name in arrays for option in (f"--{name}", f"{name}.npy"))], *words)
        self.save(factors=ones(4))
        self.refuse_options([("--bias-scale factors.npy", "--bias-scale", "--bias;"), ("--v-type q4_0", "--v-type", "--kv-type")])

    def test_packed(self):
        self.save(q=ones(10, 4, 8), k=ones(12, 2, 8), v=ones(12, 2, 6), wide=ones(3, dtype="i8") * 2**40, table=ones(1, 3, dtype="i4"),
                  real=ones(3), none=ones(0, dtype="i4"))
        good = "--cu-seqlens-k 0,5,12"
        self.refuse_options([
            ("--cu-seqlens-q 0,3,10", "--k", "(12, 2, 8)"), (f"--cu-seqlens-q 0,10 {good}", "1 sequences", "2"),
            (f"--cu-seqlens-q 0,11,10 {good}", "cu_seqlens_q"), (f"--cu-seqlens-q 0,3,11 {good}", "cu_seqlens_q", "11"),
            (f"--cu-seqlens-q -1,3,10 {good}", "--cu-seqlens-q", "-1"), (f"--cu-seqlens-q 0,,10 {good}", "--cu-seqlens-q"),
            (f"--cu-seqlens-q 0,3,10, {good}", "--cu-seqlens-q"), (f"--cu-seqlens-q 0,x,10 {good}", "--cu-seqlens-q"),
            (f"--cu-seqlens-q 0,3,3000000000 {good}", "3000000000"), (f"--cu-seqlens-q wide.npy {good}", "1099511627776"),
            (f"--cu-seqlens-q table.npy {good}", "(1, 3)"), (f"--cu-seqlens-q real.npy {good}", "float32"),
            (f"--cu-seqlens-q none.npy {good}", "empty"), (f"--cu-seqlens-q missing.npy {good}", "missing.npy")], status=(1, 2))
        self.refuse([*FILES, "--out", "o.npy"], "--q", "--cu-seqlens")

    def test_files(self):
        (self.folder / "folder").mkdir()
        out = ["--out", "o.npy"]
        self.refuse(["--q", "none.npy", *FILES[2:], *out], "none.npy", "No such file")
        self.refuse(["--q", "folder", *FILES[2:], *out], "folder", "directory")
        self.refuse([*FILES, *out, "--bias", "none.npy"], "none.npy")
        self.refuse([*FILES, "--out", "none/o.npy"], "none/o.npy", "cannot be written")
        self.refuse([*FILES, "--out", "folder"], "folder", "cannot be written")
        self.refuse([*FILES, *out, "--lse", "none/lse.npy"], "none/lse.npy")
        (self.folder / "link.npy").symlink_to("o.npy")
        for same in ("o.npy", "./o.npy", str(self.folder / "o.npy"), "link.npy"):
            self.refuse([*FILES, *out, "--lse", same], "--lse", "--out", status=(2,))
        self.refuse([*FILES, "--out", "/dev/full"], "/dev/full", "No space left")

    def test_an_old_output_survives_a_failure(self):
        self.save(o=ones(3))
        self.refuse([*FILES, "--out", "o.npy", "--lse", "/dev/full"], "/dev/full")
        self.refuse([*FILES, "--out", "o.npy", "--softcap", "-3"], "--softcap", status=(2,))
        np.testing.assert_array_equal(self.load("o"), ones(3))

    def test_usage(self):
        for args in ([], ["dance"], ["run"], ["run", *FILES], ["run", *FILES, "--out"],
                     ["run", *FILES, "--out", "o.npy", "--colour", "red"],
                     ["run", *FILES, "--out", "o.npy", "extra"], ["info", "--xml"], ["verify", "3"], ["run", "--out", "o.npy"],
                     ["--colour"]):
            with self.subTest(args=args):
                done = self.run_tool(*args)
                self.assert_sentence(done, "--help")
                self.assertEqual(done.returncode, 2)
                self.assertFalse((self.folder / "o.npy").exists())

    def test_a_word_that_is_not_known_is_named_with_the_nearest_that_is(self):
        """Also where for lack of it something else is missing."""
        for args, word, *meant in (
                (["dance"], "command 'dance'"), (["benhc", "--json"], "command 'benhc'", "bench"),
                (["ifno"], "command 'ifno'", "info"),
                (["stduy", "--shape", "1,1,1,1"], "command 'stduy'", "study"), (["--verison"], "option '--verison'", "--version"),
                (["--colour", "info"], "option '--colour'"), (["run", "--qq", "q.npy"], "option '--qq'", "--q"),
                (["run", "-q", "q.npy"], "option '-q'", "--q"), (["run", *FILES, "--otu", "o.npy"], "option '--otu'", "--out"),
                (["run", *FILES, "--out", "o.npy", "--casual=top-left"], "option '--casual'", "--causal"),
                (["run", "--cu-seqlens", "0,1"], "option '--cu-seqlens'", "--cu-seqlens-q"),
                (["bench", "--sutie", "small"], "option '--sutie'", "--suite"),
                (["bench", "--colour"], "option '--colour'"), (["solve", "--digtis", "3", "file"], "option '--digtis'", "--digits"),
                (["info", "extra"], "argument 'extra'"), (["info", "verify"], "argument 'verify'"),
                (["solve", "--", "a", "b"], "argument 'b'")):
            with self.subTest(args=args):
                done = self.run_tool(*args)
                self.assert_sentence(done, word)
                self.assertEqual(done.returncode, 2)
                self.assertEqual(re.findall(r"did you mean (\S+)\?", done.stderr), meant)

    def test_the_version_has_a_letter(self):
        self.assertEqual(self.output_of("-V"), self.output_of("--version"))

    def test_output_that_nobody_takes(self):
        """Whatever prints: a disk that is full, or no standard output at all, is told, and is no success."""
        commands = re.findall(r"^  ([a-z]+) ", self.output_of("--help").partition("Subcommands:")[2], re.MULTILINE)
        (self.folder / "exercise.txt").write_text("1 1 1\n1\n1\n1\n")
        printing = {
            "bench": [["--list", "--backend", "cpu"], ["--list", "--backend", "cpu", "--json"]],
            "completion": [["bash"], ["zsh"], ["fish"]],
            "info": [[], ["--json"]],
            "run": [[*FILES, "--out", "o.npy", "--explain"], [*FILES, "--out", "-"]],
            "solve": [["exercise.txt"]],
            "study": [["--shape", "1,1,8,8", "--rounds", "1", *more] for more in ([], ["--json"], ["--plot", "-"])],
            "verify": [["--only", "f32*causal"], ["--only", "f32*causal", "--json"]],
        }
        self.assertEqual(sorted(printing), sorted(commands))
        for args in (["--version"], ["-V"], ["--help"], ["-h"], *([name, "--help"] for name in commands),
                     *([name, *options] for name, each in printing.items() for options in each)):
            for closed in (False, True):
                with self.subTest(args=args, closed=closed), open("/dev/full", "w") as full:
                    done = subprocess.run([TOOL, *args], cwd=self.folder, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
                                          preexec_fn=(lambda: os.close(1)) if closed else None)
                    self.assertEqual(done.returncode, 1)
                    self.assertRegex(done.stderr, r"\A(\d+/\d+ [^\n]+\n)*flashattn: standard output:? cannot be written[^\n]*\n\Z")

    def test_environment(self):
        for command in (["run", *FILES, "--out", "o.npy"], ["study"], ["verify"]):
            self.assert_sentence(self.run_tool(*command, env={"FLASHATTN_MAX_ISA": "sse9"}), "FLASHATTN_MAX_ISA", "sse9")
        self.assertFalse((self.folder / "o.npy").exists())


if __name__ == "__main__":
    unittest.main()
