"""The hand-written ctypes declarations against what the C compiler makes of the header.

FLASHATTN_INCLUDE: folder of flashattn.h; CC: the C compiler (default cc).
"""

import ctypes
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from flashattn import _abi
from flashattn._library import library

HEADER = Path(os.environ["FLASHATTN_INCLUDE"], "flashattn.h")


def without_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def compile_and_run(lines):
    """What a C program with the header and these statements prints, as a dict of the numbers by name."""
    program = "#include <flashattn.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n"
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "print.c"), Path(folder, "print")
        source.write_text(program)
        compiler = os.environ.get("CC", "cc").split()
        subprocess.run([*compiler, "-std=c99", "-I", str(HEADER.parent), str(source), "-o", str(binary)], check=True)
        output = subprocess.run([str(binary)], check=True, capture_output=True, text=True).stdout
    return {name: int(number) for name, number in (line.split() for line in output.splitlines())}


def show(name, expression):
    return f'printf("%s %lld\\n", "{name}", (long long)({expression}));'


class Declarations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.text = without_comments(HEADER.read_text())
        constants = re.findall(r"\b(FA_[A-Z0-9_]+)\s*=", cls.text)
        lines = [show(name, name) for name in constants]
        lines += [show(f"VERSION_{part}", f"FA_VERSION_{part}") for part in ("MAJOR", "MINOR", "PATCH")]
        for name, struct in _abi.STRUCTS.items():
            lines.append(show(name, f"sizeof({name})"))
            for field, *_ in struct._fields_:
                lines.append(show(f"{name}.{field}", f"offsetof({name}, {field})"))
                lines.append(show(f"{name}.{field}.size", f"sizeof((({name}*)0)->{field})"))
        cls.constants = constants
        cls.numbers = compile_and_run(lines)

    def test_every_constant(self):
        self.assertGreater(len(self.constants), 60)
        mirrored = {name for name in vars(_abi) if name.startswith("FA_")}
        self.assertEqual(mirrored, set(self.constants))
        for name in self.constants:
            self.assertEqual(getattr(_abi, name), self.numbers[name], name)

    def test_version(self):
        self.assertEqual(_abi.VERSION, tuple(self.numbers[f"VERSION_{part}"] for part in ("MAJOR", "MINOR", "PATCH")))

    def test_every_struct(self):
        self.assertEqual(set(_abi.STRUCTS), set(re.findall(r"}\s*(fa_\w+_t);", self.text)))
        for name, struct in _abi.STRUCTS.items():
            self.assertEqual(ctypes.sizeof(struct), self.numbers[name], name)
            for field, *_ in struct._fields_:
                with self.subTest(field=f"{name}.{field}"):
                    self.assertEqual(getattr(struct, field).offset, self.numbers[f"{name}.{field}"])
                    self.assertEqual(getattr(struct, field).size, self.numbers[f"{name}.{field}.size"])

    def test_every_field_is_mirrored(self):
        """Sizes agree with fields missing only if others fill their place; the order of names leaves no doubt."""
        for name, struct in _abi.STRUCTS.items():
            body = re.search(r"typedef struct \w+ {([^}]*)}\s*" + name + ";", self.text).group(1)
            fields = [
                re.search(r"(\w+)(\[\d+\])*$", declaration.strip()).group(1)
                for declaration in body.split(";")
                if declaration.strip()
            ]
            self.assertEqual([field for field, *_ in struct._fields_], fields, name)

    def test_prototypes(self):
        """Each declared function has as many arguments as in the header, of the same sizes."""
        for name, (_, arguments) in _abi.PROTOTYPES.items():
            declared = re.search(rf"FA_API [\w *]+ ?\*?{name}\(([^)]*)\)", self.text)
            self.assertIsNotNone(declared, name)
            parameters = [p.strip() for p in declared.group(1).split(",") if p.strip() != "void"]
            self.assertEqual(len(arguments), len(parameters), name)
            for argument, parameter in zip(arguments, parameters):
                self.assertEqual(ctypes.sizeof(argument), size_of(parameter), f"{name}: {parameter}")

    def test_the_library_has_what_is_declared(self):
        for name in _abi.PROTOTYPES:
            self.assertTrue(hasattr(library(), name), name)


def size_of(parameter):
    """Bytes of a C parameter of this header."""
    if "*" in parameter or "fa_handle_t" in parameter:
        return 8
    for kind, size in (("64_t", 8), ("int32_t", 4), ("fa_status_t", 4), ("float", 4)):
        if kind in parameter:
            return size
    raise ValueError(parameter)


if __name__ == "__main__":
    unittest.main()
