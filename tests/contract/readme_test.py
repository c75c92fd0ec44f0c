"""README: its flag table is what --help says, its links lead somewhere, its environment table names every variable that the code reads.

    readme_test.py [--update]    (LOSSGAUGE_BUILD_DIR: where bin/lossgauged is)
"""

import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BEGIN, END = "<!-- flags: made by tests/contract/readme_test.py --update -->\n", "\n<!-- end of flags -->"


def flag_table():
    binary = pathlib.Path(os.environ.get("LOSSGAUGE_BUILD_DIR", ROOT / "build" / "cpu")) / "bin" / "lossgauged"
    text = subprocess.run([binary, "--help"], capture_output=True, text=True, check=True).stdout
    rows = ["| flag | default | meaning |", "| --- | --- | --- |"]
    for name, default, lines in re.findall(r"^  (--\w+) \(default: (.*?)\)\n((?:      .*\n)+)", text, re.M):
        meaning = " ".join(line.strip() for line in lines.splitlines()).strip()
        rows.append(f"| `{name}` | {'see text' if default == 'see below' else f'`{default}`'} | {meaning} |")
    return "\n".join(rows)


def in_readme():
    text = README.read_text()
    return text[text.index(BEGIN) + len(BEGIN):text.index(END)]


def anchor(heading):
    """Of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def headings(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, re.M)}


class ReadmeTest(unittest.TestCase):
    maxDiff = None

    def test_the_flag_table_is_what_help_says(self):
        table = flag_table()
        self.assertGreater(table.count("\n"), 10)
        self.assertEqual(in_readme(), table)

    def test_every_folder_at_the_top_has_a_page_of_its_own(self):
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
        folders = {path.split("/")[0] for path in tracked if "/" in path and not path.startswith(".")}
        self.assertTrue(not tracked or len(folders) > 4)
        self.assertEqual([folder for folder in sorted(folders) if not (ROOT / folder / "README.md").exists()], [])

    def test_the_change_log_is_of_this_version(self):
        version = re.search(r"project\(lossgauge VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
        self.assertEqual(re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M).group(1), version)

    def test_every_link_to_a_file_leads_to_one(self):
        pages = [path for path in ROOT.rglob("*.md") if not {"build", "node_modules"} & set(path.relative_to(ROOT).parts)]
        self.assertGreater(len(pages), 10)
        dead = []
        for page in pages:
            for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
                if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists():
                    dead.append(f"{page.relative_to(ROOT)}: {target}")
        self.assertEqual(dead, [])

    def test_every_link_to_a_heading_leads_to_one(self):
        pages = [path for path in ROOT.rglob("*.md") if not {"build", "node_modules"} & set(path.relative_to(ROOT).parts)]
        followed, dead = 0, []
        for page in pages:
            for target, heading in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text()):
                where = page.parent / target if target else page
                if re.match(r"[a-z]+:", target) or where.suffix != ".md" or not where.exists():
                    continue
                followed += 1
                if heading not in headings(where):
                    dead.append(f"{page.relative_to(ROOT)}: {target}#{heading}")
        self.assertGreater(followed, 5)
        self.assertEqual(dead, [])

    def test_every_section_that_a_header_names_is_there(self):
        """As a comment has it: README.md, "Terms"."""
        named = 0
        for folder in ("kernels/include", "client/cpp/include", "proto", "dashboards/runbooks"):
            for path in (ROOT / folder).rglob("*"):
                if path.suffix not in (".h", ".hpp", ".proto", ".md"):
                    continue
                for page, heading in re.findall(r'((?:\w+/)*README\.md),? "([^"]+)"', path.read_text()):
                    named += 1
                    self.assertIn(anchor(heading), headings(ROOT / page), path)
        self.assertGreater(named, 2)

    def test_every_variable_that_programs_read_is_in_the_table(self):
        named = set(re.findall(r"`(LOSSGAUGE_\w+)`", README.read_text()))
        read = set()
        for folder in ("kernels", "client", "server", "deploy"):
            for path in (ROOT / folder).rglob("*"):
                if path.suffix in (".cc", ".h", ".sh", ".cu", ".py", ".sbatch") and "node_modules" not in path.parts:
                    text = path.read_text(errors="replace")
                    read |= set(re.findall(r'"(LOSSGAUGE_[A-Z_]+)"', text)) | set(re.findall(r"\$\{(LOSSGAUGE_[A-Z_]+)", text))
        read -= {"LOSSGAUGE_VERSION"}
        self.assertTrue(read)
        self.assertLessEqual(read, named)


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        README.write_text(README.read_text().replace(in_readme(), flag_table()))
    else:
        unittest.main(verbosity=2)
