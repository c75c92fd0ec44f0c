"""The list of planted faults fits the tree: who edits a kernel is told which entry to edit with it."""

import pathlib
import tempfile
import unittest

import fault_list
import plant

ENTRY = """
[[fault]]
cases = ["B99"]
fault = "adds instead of subtracting"
file = "sum.cc"
text = "a - b"
replacement = "a + b"
program = "sum_test"
tests = ["Sum.IsRight"]
"""


class TheList(unittest.TestCase):
    def test_each_text_stands_once_in_the_tree(self):
        preparations, faults = fault_list.load()
        fault_list.check(preparations, faults, plant.TOP)

    def test_each_test_stands_in_the_tests(self):
        sources = "\n".join(path.read_text() for path in (plant.TOP / "tests" / "kernels").rglob("*.cc"))
        for fault in fault_list.load()[1]:
            for test in fault.tests:
                with self.subTest(fault=fault.name, test=test):
                    self.assertIn(f"{test.split('.')[1].split('/')[0]})", sources)


class AnEntry(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name)
        self.file = self.tree / "sum.cc"

    def refuses(self, text):
        with self.assertRaises(fault_list.BadList) as caught:
            fault_list.check(*fault_list.parse(text), self.tree)
        return str(caught.exception)

    def test_is_named_if_its_text_is_gone_or_no_longer_alone(self):
        self.file.write_text("return b - a;")
        self.assertIn("B99, adds instead of subtracting: sum.cc: expected this text once, found it 0 times", self.refuses(ENTRY))
        self.file.write_text("return a - b + (a - b);")
        self.assertIn("found it 2 times", self.refuses(ENTRY))
        self.file.unlink()
        self.assertIn("B99, adds instead of subtracting: sum.cc: No such file", self.refuses(ENTRY))

    def test_is_named_if_a_word_is_missing_or_unknown(self):
        self.file.write_text("return a - b;")
        self.assertIn("tests: expected a list", self.refuses(ENTRY.replace('["Sum.IsRight"]', "[]")))
        self.assertIn("replacement: is the text itself", self.refuses(ENTRY.replace("a + b", "a - b")))
        self.assertIn("unknown words ['cause']", self.refuses(ENTRY + 'cause = "none"'))
        self.assertIn("one test to die in", self.refuses(ENTRY.replace('["Sum.IsRight"]', '["Sum.IsRight", "Sum.IsOther"]') + "dies = true"))
        self.assertIn("stands there twice", self.refuses(ENTRY + ENTRY))
        self.assertIn("no [[fault]]", self.refuses(""))

    def test_is_planted_and_put_back(self):
        self.file.write_text("return a - b;")
        fault = fault_list.parse(ENTRY)[1][0]
        before = fault.edit.apply(fault.name, self.tree)
        self.assertEqual(self.file.read_text(), "return a + b;")
        self.assertEqual(before, "return a - b;")


class ABench:
    """Of a program whose tests are as told."""

    def __init__(self, tree, builds, results):
        self.tree, self.builds, self.results = tree, builds, results

    def build(self, programs):
        return self.builds

    def run(self, program, tests):
        if isinstance(self.results, str):
            raise plant.Died(program, 11, self.results)
        return self.results


class APlantedFault(unittest.TestCase):
    def see(self, builds, results, entry=ENTRY):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "sum.cc"
            file.write_text("return a - b;")
            try:
                return plant.see_red(ABench(pathlib.Path(folder), builds, results), fault_list.parse(entry)[1][0])
            except plant.Unseen as error:
                return str(error)
            finally:
                self.assertEqual(file.read_text(), "return a - b;")

    def test_counts_as_seen_only_if_its_test_ran_and_failed(self):
        self.assertEqual(self.see(True, {"Sum.IsRight": False}), ("Sum.IsRight",))
        self.assertEqual(self.see(True, {"Sum.IsRight": True}), "stayed green: Sum.IsRight")
        self.assertEqual(self.see(True, {}), "stayed green: Sum.IsRight")
        self.assertEqual(self.see(False, {}), "does not build")
        self.assertEqual(self.see(True, "Sum.IsRight"), "sum_test died of signal 11 in Sum.IsRight")

    def test_may_kill_the_one_test_that_its_entry_says(self):
        dies = ENTRY + "dies = true"
        self.assertEqual(self.see(True, "Sum.IsRight", dies), ("Sum.IsRight",))
        self.assertEqual(self.see(True, "Sum.IsOther", dies), "sum_test died of signal 11 in Sum.IsOther")
        self.assertEqual(self.see(True, "", dies), "sum_test died of signal 11 in no test")


if __name__ == "__main__":
    unittest.main()
