"""The Python package: its name on an index, and its programs where it has the library alone.

    PYTHONPATH=python python3 python_package_test.py
"""
import pathlib
import re
import unittest

import gpumem

SOURCES = pathlib.Path(__file__).resolve().parents[3]
# On the public index this is another project's package.
TAKEN = "gpumem"


class PythonPackage(unittest.TestCase):
    def test_the_distribution_has_a_name_of_its_own(self):
        name = re.search(r'^name = "(.*)"$', (SOURCES / "pyproject.toml").read_text(), re.MULTILINE)[1]
        self.assertNotEqual(name.lower(), TAKEN)
        self.assertIn(f"Name: {name}\\n", (SOURCES / "scripts" / "frameworks").read_text())

    def test_no_text_installs_the_package_by_its_name(self):
        by_name = re.compile(rf"pip[0-9]* install (?:-\S+ )*(?:it\b|{TAKEN}(?:-allocator)?(?![\w/.-]))")
        texts = [SOURCES / "README.md"]
        for folder, pattern in (("docs", "*.md"), ("python", "*.py"), ("python", "*.md"), ("scripts", "*"), ("cli", "*.?pp")):
            texts += (each for each in (SOURCES / folder).rglob(pattern) if each.is_file())
        self.assertGreater(len(texts), 50)
        found = [f"{each}: {match[0]}" for each in texts for match in by_name.finditer(each.read_text(errors="replace"))]
        self.assertEqual(found, [])

    def test_a_program_that_is_not_installed_says_so(self):
        with self.assertRaises(SystemExit) as ended:
            gpumem._run("no_such_program")
        self.assertIn("no_such_program does not exist: this package has the library alone", str(ended.exception))


if __name__ == "__main__":
    unittest.main()
