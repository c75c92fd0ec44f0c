"""The structures that ctypes writes are those that the compiler reads."""

import ctypes
import os
import subprocess
import sys
import tempfile
import unittest

from lossgauge import abi, library

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Abi(unittest.TestCase):
    def test_offsets_and_sizes_are_the_compilers(self):
        lines = ['#include <stdio.h>', '#include "lossgauge/lossgauge.h"', "int main(void) {"]
        for name, structure in abi.STRUCTURES.items():
            lines.append('printf("{0} %zu\\n", sizeof({0}));'.format(name))
            for field, *_ in structure._fields_:
                lines.append('printf("{0}.{1} %zu %zu\\n", offsetof({0}, {1}), sizeof((({0}*)0)->{1}));'.format(name, field))
        with tempfile.TemporaryDirectory() as directory:
            source, program = os.path.join(directory, "offsets.c"), os.path.join(directory, "offsets")
            with open(source, "w") as file:
                file.write("\n".join(lines + ["return 0;", "}"]))
            subprocess.run([os.environ.get("CC", "cc"), "-I", os.path.join(ROOT, "kernels", "include"), source, "-o", program], check=True)
            said = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout.split("\n")
        expected = []
        for name, structure in abi.STRUCTURES.items():
            expected.append("{} {}".format(name, ctypes.sizeof(structure)))
            for field, *_ in structure._fields_:
                described = getattr(structure, field)
                expected.append("{}.{} {} {}".format(name, field, described.offset, described.size))
        self.assertEqual(expected, [line for line in said if line])

    def test_the_library_fills_in_its_own_sizes(self):
        for name in abi.INITIALISERS:
            structure = library.new(name[len("lg_"):-len("_init")])
            self.assertEqual(ctypes.sizeof(structure), structure.struct_size, name)

    def test_a_library_that_is_not_there_is_named(self):
        code = "import os; os.environ['LOSSGAUGE_LIBRARY'] = '/nowhere/liblossgauge.so.0'\nimport lossgauge\ntry: lossgauge.version()\nexcept lossgauge.Error as e: print(e)"
        said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                              env=dict(os.environ, PYTHONPATH=os.path.join(ROOT, "client", "python"))).stdout
        self.assertIn("/nowhere/liblossgauge.so.0", said)
        self.assertIn("LOSSGAUGE_LIBRARY", said)


if __name__ == "__main__":
    unittest.main()
