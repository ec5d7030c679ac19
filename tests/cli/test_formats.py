"""The .npy files that `flashattn run` reads and writes."""

import struct
import unittest

import numpy as np
from numpy.lib import format as npy

from tool import ToolCase, bf16_bits


def npy_bytes(header, data=b"", version=(1, 0)):
    header = header.encode("utf-8" if version == (3, 0) else "latin1")
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version == (1, 0) else "<I", len(header)) + header + data


class Formats(ToolCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        self.q, self.k, self.v = (rng.standard_normal(shape).astype("f4") for shape in ((2, 6, 4, 8), (2, 9, 2, 8), (2, 9, 2, 5)))
        self.save(q=self.q, k=self.k, v=self.v)
        self.o, self.lse = self.attention()

    def assert_same(self):
        o, lse = self.attention()
        np.testing.assert_array_equal(o, self.o)
        np.testing.assert_array_equal(lse, self.lse)

    def test_fortran_order(self):
        self.save(q=np.asfortranarray(self.q), k=np.asfortranarray(self.k), v=np.asfortranarray(self.v))
        self.assertFalse(np.load(self.folder / "q.npy").flags.c_contiguous)
        self.assert_same()

    def test_fortran_order_of_bias_and_mask(self):
        rng = np.random.default_rng(1)
        bias, mask = rng.standard_normal((2, 4, 6, 9)).astype("f4"), rng.random((4, 6, 9)) < 0.7
        self.save(bias=bias, mask=mask)
        want = self.attention("--bias", "bias.npy", "--mask", "mask.npy")
        self.save(bias=np.asfortranarray(bias), mask=np.asfortranarray(mask))
        for got, expected in zip(self.attention("--bias", "bias.npy", "--mask", "mask.npy"), want):
            np.testing.assert_array_equal(got, expected)

    def test_versions(self):
        for version in ((1, 0), (2, 0), (3, 0)):
            for name, array in (("q", self.q), ("k", self.k), ("v", self.v)):
                with open(self.folder / f"{name}.npy", "wb") as file:
                    npy.write_array(file, array, version)
            self.assert_same()

    def test_headers_that_other_writers_make(self):
        shape = "(" + ", ".join(str(n) for n in self.q.shape) + ")"
        for header in (f"{{'shape': {shape}, 'fortran_order': False, 'descr': '<f4'}}",
                       f'{{"descr": "<f4", "fortran_order": False, "shape": {shape}, }}\n',
                       f"{{ 'descr' :'<f4','fortran_order':False,'shape':({'L, '.join(str(n) for n in self.q.shape)}L,) }}   \n"):
            (self.folder / "q.npy").write_bytes(npy_bytes(header, self.q.tobytes()))
            self.assert_same()

    def test_what_is_written(self):
        data = (self.folder / "o.npy").read_bytes()
        self.assertEqual(data[:8], b"\x93NUMPY\x01\x00")
        self.assertEqual((len(data) - self.o.nbytes) % 64, 0)
        self.assertTrue(self.o.flags.c_contiguous)
        self.assertEqual((self.o.shape, self.o.dtype), ((2, 6, 4, 5), np.float32))
        self.assertEqual((self.lse.shape, self.lse.dtype), ((2, 4, 6), np.float32))

    def test_files_of_either_byte_order(self):
        """NumPy writes arrays in the order that they have; what the tool writes is the same everywhere."""
        rng = np.random.default_rng(2)
        bias, sinks = rng.standard_normal((6, 9)).astype("f4"), rng.standard_normal(4).astype("f4")
        packed = {name: array[0] for name, array in zip("qkv", (self.q, self.k, self.v))}
        offsets = {"cu_q": np.array([0, 2, 6], "i8"), "cu_k": np.array([0, 4, 9], "i4")}
        lists = [option for name in "qk" for option in (f"--cu-seqlens-{name}", f"cu_{name}.npy")]
        for arrays, options in (
            ({"q": self.q, "k": self.k, "v": np.asfortranarray(self.v), "bias": bias, "sinks": sinks},
             ["--bias", "bias.npy", "--sinks", "sinks.npy"]),
            ({name: array.astype("f2") for name, array in packed.items()} | offsets, lists),
            ({name: bf16_bits(array) for name, array in packed.items()} | offsets, [*lists, "--dtype", "bf16"]),
        ):
            written = []
            for order in "<>":
                self.save(**{name: array.astype(array.dtype.newbyteorder(order)) for name, array in arrays.items()})
                with open(self.folder / "q.npy", "rb") as file:
                    self.assertIn(f"'descr': '{order}", file.read(40).decode("latin1"))
                self.attention(*options)
                written.append([(self.folder / name).read_bytes() for name in ("o.npy", "lse.npy")])
            self.assertEqual(*written)
            self.assertIn(b"'descr': '<", written[0][0])

    def test_bfloat16_of_ml_dtypes_is_two_opaque_bytes(self):
        self.save(**{name: bf16_bits(array) for name, array in zip("qkv", (self.q, self.k, self.v))})
        want = self.attention("--dtype", "bf16")[0]
        self.save(**{name: bf16_bits(array).view("V2") for name, array in zip("qkv", (self.q, self.k, self.v))})
        np.testing.assert_array_equal(self.attention("--dtype", "bf16")[0], want)

    def test_offsets_as_int64_file(self):
        self.save(q=self.q[0], k=self.k[0], v=self.v[0])
        want = self.attention("--cu-seqlens-q", "0,2,6", "--cu-seqlens-k", "0,4,9")
        self.save(cu_q=np.array([0, 2, 6]), cu_k=np.array([0, 4, 9], "i4"))
        for got, expected in zip(self.attention("--cu-seqlens-q", "cu_q.npy", "--cu-seqlens-k", "cu_k.npy"), want):
            np.testing.assert_array_equal(got, expected)

    def test_output_through_a_link_and_to_a_device(self):
        (self.folder / "real").mkdir()
        (self.folder / "o.npy").rename(self.folder / "real" / "o.npy")
        (self.folder / "o.npy").symlink_to("real/o.npy")
        self.attention()
        self.assertTrue((self.folder / "o.npy").is_symlink())
        np.testing.assert_array_equal(np.load(self.folder / "real" / "o.npy"), self.o)
        self.output_of("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "/dev/null")


class BrokenFiles(ToolCase):
    """Each is refused by one sentence that names the file, and no output appears."""

    def setUp(self):
        super().setUp()
        self.save(k=np.ones((1, 3, 1, 4), "f4"), v=np.ones((1, 3, 1, 4), "f4"))

    def refuse(self, data, *words):
        (self.folder / "q.npy").write_bytes(data)
        before = sorted(path.name for path in self.folder.iterdir())
        done = self.run_tool("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "o.npy")
        self.assert_sentence(done, "q.npy", *words)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), before)

    def test_every_prefix_of_a_file(self):
        np.save(self.folder / "whole.npy", np.ones((1, 2, 1, 4), "f4"))
        data = (self.folder / "whole.npy").read_bytes()
        for size in [*range(0, 128, 7), 127, 128, 129, len(data) - 1]:
            with self.subTest(size=size):
                self.refuse(data[:size])

    def test_headers(self):
        good = {"descr": "'<f4'", "fortran_order": "False", "shape": "(1, 2, 1, 4)"}
        rows = [({"descr": "'?f4'"}, "?f4"), ({"descr": "'>f8'"}, "float64"), ({"descr": "'<f8'"}, "float64"), ({"descr": "'<c8'"}, "c8"),
                ({"descr": "'|O'"}, "O"), ({"descr": "[('a', '<f4')]"}, "structured"), ({"descr": "'f4'"}, "f4"),
                ({"descr": "''"}, "cannot be read"), ({"descr": "'<f4"}, "not a valid"), ({"fortran_order": "Maybe"}, "fortran_order"),
                ({"shape": "(-1, 2, 1, 4)"}, "extent"), ({"shape": "(1, 2, 1, 4"}, "not a valid"), ({"shape": "8"}, "not a valid"),
                ({"shape": "(1, 2, 1, 99999999999999999999)"}, "overflows"), ({"shape": "(4294967296, 4294967296, 1, 4)"}, "larger"),
                ({"shape": "(1000000000, 2, 1, 4)"}, "truncated"), ({"shape": "(1, 2, 4)"}, "after the end"),
                ({"shape": "(1, 2, 1, 3)"}, "after the end"), ({"shape": "(0, 9223372036854775807, 3, 4)"}, "larger"),
                ({"shape": None}, "lacks"), ({"descr": None}, "lacks"), ({"extra": "1"}, "unknown key")]
        for change, word in rows:
            with self.subTest(change=change):
                fields = {key: value for key, value in {**good, **change}.items() if value is not None}
                header = "{" + ", ".join(f"'{key}': {value}" for key, value in fields.items()) + "}"
                self.refuse(npy_bytes(header, np.ones(8, "f4").tobytes() + (b"" if word != "after the end" else b"1234")), word)

    def test_no_npy_at_all(self):
        self.refuse(b"")
        self.refuse(b"hello, world, this is no array", "not a .npy file")
        self.refuse(npy_bytes("{}", b"", (9, 0)), "version 9")
        self.refuse(npy_bytes(""), "header")
        self.refuse(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{'descr'", "truncated")
        self.refuse(npy_bytes("[1, 2, 3]"), "not a valid")

    def test_random_bytes_in_the_header(self):
        rng = np.random.default_rng(7)
        np.save(self.folder / "whole.npy", np.ones((1, 2, 1, 4), "f4"))
        whole = bytearray((self.folder / "whole.npy").read_bytes())
        for _ in range(60):
            data = whole.copy()
            data[int(rng.integers(6, 70))] = int(rng.integers(0, 256))
            (self.folder / "q.npy").write_bytes(data)
            done = self.run_tool("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "o.npy")
            if done.returncode != 0:
                self.assert_sentence(done)


if __name__ == "__main__":
    unittest.main()
