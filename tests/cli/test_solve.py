"""`flashattn solve`: the classic exercise, and random ones against NumPy in float64."""

import unittest

import numpy as np

from tool import ToolCase

EXERCISE = """2 4 2
1 0 2 3
4 5 6 7
1 2 3 4
5 6 7 8
0.5 1 1.5 2
2.5 3 3.5 4
"""


def text_of(n, d_model, heads, *matrices):
    return f"{n} {d_model} {heads}\n" + "\n".join(" ".join(repr(float(x)) for x in row) for m in matrices for row in m)


def attention(q, k, v, heads):
    n, d_model = q.shape
    split = lambda x: x.astype(np.float64).reshape(n, heads, d_model // heads).transpose(1, 0, 2)
    scores = split(q) @ split(k).transpose(0, 2, 1) / np.sqrt(d_model // heads)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return ((p / p.sum(-1, keepdims=True)) @ split(v)).transpose(1, 0, 2).reshape(n, d_model)


class Solve(ToolCase):
    def solve(self, text, *options):
        return self.output_of("solve", "-", *options, stdin=text)

    def test_the_exercise(self):
        expected = "2.39 2.89 3.50 4.00\n2.50 3.00 3.50 4.00\n"
        self.assertEqual(self.solve(EXERCISE), expected)
        (self.folder / "exercise.txt").write_text(EXERCISE)
        self.assertEqual(self.output_of("solve", "exercise.txt"), expected)

    def test_blanks_and_line_ends_are_alike(self):
        self.assertEqual(self.solve(EXERCISE.replace("\n", " \t")), self.solve(EXERCISE))
        self.assertEqual(self.solve("\n\n" + EXERCISE.replace(" ", "\r\n")), self.solve(EXERCISE))

    def test_digits(self):
        self.assertEqual(self.solve("1 2 1  0 0  0 0  1.25 -3.75", "--digits", "0"), "1 -4\n")
        lines = self.solve(EXERCISE, "--digits=6").splitlines()
        self.assertRegex(lines[0], r"\A2\.3883\d\d 2\.8883\d\d 3\.49999\d 3\.99999\d\Z")

    def test_random(self):
        rng = np.random.default_rng(0)
        sizes = [(1, 1, 1), (1, 1024, 1), (70, 6, 6), (3, 2048, 2), (200, 4, 1)]
        for _ in range(40):
            heads = int(rng.integers(1, 7))
            sizes.append((int(rng.integers(1, 80)), heads * int(rng.integers(1, 20)), heads))
        for n, d_model, heads in sizes:
            with self.subTest(n=n, d_model=d_model, heads=heads):
                q, k, v = (rng.standard_normal((n, d_model)).astype("f4") for _ in "qkv")
                lines = self.solve(text_of(n, d_model, heads, q, k, v), "--digits", "9").splitlines()
                got = np.array([line.split(" ") for line in lines], float)
                self.assertEqual(got.shape, (n, d_model))
                np.testing.assert_allclose(got, attention(q, k, v, heads), rtol=0, atol=2e-5)

    def test_two_digits_are_those_of_the_truth(self):
        rng = np.random.default_rng(1)
        q, k, v = (rng.standard_normal((30, 24)).astype("f4") for _ in "qkv")
        want = attention(q, k, v, 4)
        sure = np.abs(want * 100 - np.round(want * 100)) < 0.499  # no tie that the last bit could turn
        got = np.array([line.split(" ") for line in self.solve(text_of(30, 24, 4, q, k, v)).splitlines()])
        np.testing.assert_array_equal(got[sure], np.array([[f"{x:.2f}" for x in row] for row in want])[sure])

    def test_nan_and_infinity_are_data(self):
        self.assertEqual(self.solve("1 2 1  1 1  1 1  nan inf"), "nan inf\n")
        self.assertEqual(self.solve("1 1 1  1 1 -nan"), "nan\n")


class BadText(ToolCase):
    def test_each_is_refused_by_line(self):
        numbers = " ".join(["1"] * 24)
        rows = [("", "line 1", "N"), ("   \n\n", "line 3", "N"), ("2", "d_model"), ("2 4", "ends before h"),
                ("2.5 4 2 " + numbers, "N", "'2.5'"), ("0 4 2", "N", "'0'"), ("-1 4 2", "N"), ("nan 4 2", "N", "'nan'"),
                ("2 x 2", "d_model", "'x'"), ("2 4 0", "h is '0'"), ("2 4 3 " + numbers, "multiple"), ("1e3 4 2", "N"),
                ("99999999999999999999 1 1", "N"), ("1 1025 1", "1025", "1024"), ("2 4 2\n" + " ".join(["1"] * 23), "line 2", "V[1][3]"),
                ("2 4 2\n" + numbers[:-2], "V[1][3]"), ("2 4 2\n1 2\n", "line 3", "Q[0][2]"),
                ("2 4 2 1 1 1 1 one 1 1 1", "Q[1][0]", "'one'"),
                ("2 4 2 " + numbers + " 1", "more follows", "'1'"), ("2 4 2 " + numbers + "\n\n\nx", "line 4", "more follows"),
                ("1 1 1 1e39 1 1", "Q[0][0]", "1e39"), ("1 1 1 1,5 1 1", "'1,5'"), ("1 1 1 1 1 1.0.0", "V[0][0]"),
                ("1 1 1 \x1b[31m 1 1", "'?[31m'"), ("1 1 1 " + "9" * 200 + " 1 1", "Q[0][0]"), ("1000000000000 1000 1000 1 2 3", "Q[0][3]"),
                ("1 1 1 1\0002 1 1", "Q[0][0]")]
        for text, *words in rows:
            with self.subTest(text=text[:60]):
                self.assert_sentence(self.run_tool("solve", "-", stdin=text), "-, line ", *words)

    def test_files_and_options(self):
        (self.folder / "exercise.txt").write_text(EXERCISE)
        (self.folder / "folder").mkdir()
        self.assert_sentence(self.run_tool("solve", "none.txt"), "none.txt", "No such file")
        self.assert_sentence(self.run_tool("solve", "folder"), "folder", "directory")
        self.assert_sentence(self.run_tool("solve"), "FILE")
        for digits in ("-1", "101", "nan", "2.5", "", "x"):
            self.assert_sentence(self.run_tool("solve", "exercise.txt", "--digits", digits), "--digits")
        self.assert_sentence(self.run_tool("solve", "exercise.txt", "--backend", "tpu"), "--backend", "tpu")


if __name__ == "__main__":
    unittest.main()
