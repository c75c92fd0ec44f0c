"""Which part may include which: the direction of every include in the tree, and the names at its top.

    include_direction_test.py [SOURCE_DIR]
"""
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Folder -> folders of ours that it may include. The longest matching folder counts. Generated headers: "lossgauge/v1",
# "grpc/health/v1", "tensorboard".
ALLOWED = {
    'proto/lossgauge/ring': ['proto/lossgauge/ring'],
    # What event files look like, for who writes and who reads them.
    'proto/tensorboard': ['proto/tensorboard'],
    'kernels': ['kernels', 'proto/lossgauge/ring'],
    # What the C ABI is: it stands alone, so that it can be installed alone.
    'kernels/include': ['kernels/include'],
    # Chooses the backend, so it sees what each offers; the backends do not see one another.
    'kernels/host': ['kernels/host', 'kernels/cpu', 'kernels/cuda', 'kernels/include', 'proto/lossgauge/ring'],
    'kernels/cpu': ['kernels/cpu', 'kernels/host', 'kernels/include', 'proto/lossgauge/ring'],
    'kernels/cuda': ['kernels/cuda', 'kernels/host', 'kernels/include', 'proto/lossgauge/ring'],
    'client': ['client', 'kernels/include'],
    'server/state': ['server/state', 'proto/lossgauge/ring'],
    'server/ingest': ['server/ingest', 'server/state', 'proto/lossgauge/ring', 'lossgauge/v1'],
    'server/detect': ['server/detect', 'server/state', 'proto/lossgauge/ring'],
    'server/export': ['server/export', 'server/transport', 'server/state', 'proto/lossgauge/ring', 'prometheus', 'opentelemetry/proto'],
    'server/api': ['server/api', 'server/state', 'proto/lossgauge/ring', 'lossgauge/v1'],
    # What servers and clients need of the wire: TLS, tokens, limits.
    'server/transport': ['server/transport', 'server/state', 'proto/lossgauge/ring'],
    'server/rpc': ['server/rpc', 'server/api', 'server/transport', 'server/state', 'proto/lossgauge/ring', 'lossgauge/v1', 'grpc/health/v1'],
    'server/web': ['server/web', 'server/api', 'server/transport', 'server/state', 'proto/lossgauge/ring', 'lossgauge/v1'],
    # Logs of others as points, and the points through the same run book and judge as lossgauged's.
    'server/replay': ['server/replay', 'server/state', 'server/detect', 'proto/lossgauge/ring', 'proto/tensorboard', 'tensorboard'],
    # The command line sees the API's messages, the ring for `dump`, event files for `export`, and `replay` with what its results are made of.
    'server/ctl': ['server/ctl', 'server/api', 'server/transport', 'server/replay', 'server/state', 'server/detect', 'proto/lossgauge/ring', 'proto/tensorboard',
                   'lossgauge/v1', 'grpc/health/v1', 'tensorboard'],
    'server/main': ['server', 'proto/lossgauge/ring', 'lossgauge/v1'],
}
# How a header of the C ABI and of the C++ client is named by those who use the installed ones.
ALIASES = {'lossgauge/lossgauge.h': 'kernels/include', 'lossgauge/lossgauge.hpp': 'client', 'lossgauge/gauge.hpp': 'client'}
SUFFIXES = {'.h', '.hpp', '.c', '.cc', '.cpp', '.cu', '.cuh', '.inc'}
TOP_LEVEL = {'proto', 'kernels', 'client', 'server', 'dashboards', 'deploy', 'tests', 'CMakeLists.txt', 'CMakePresets.json', 'README.md',
             'CHANGELOG.md', 'LICENSE', 'build'}
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)


def rule_for(folder):
    matches = [rule for rule in ALLOWED if folder == rule or folder.startswith(rule + '/')]
    return max(matches, key=len) if matches else None


def target_of(root, including, name):
    """The folder of ours that an include stands for; None if it is not ours."""
    if name in ALIASES:
        return ALIASES[name]
    for generated in ('lossgauge/v1', 'grpc/health/v1', 'tensorboard'):
        if name.startswith(generated + '/'):
            return generated
    for base in (root, including.parent):
        path = (base / name).resolve()
        if path.is_file() and root in path.parents:
            return path.parent.relative_to(root).as_posix()
    top = name.split('/')[0]
    return '/'.join(name.split('/')[:-1]) if top in ('proto', 'kernels', 'client', 'server', 'tests') else None


def violations(root):
    found = []
    for top in ('proto', 'kernels', 'client', 'server'):
        for path in sorted((root / top).rglob('*')):
            if path.suffix not in SUFFIXES or 'node_modules' in path.parts or not path.is_file():
                continue
            folder = path.parent.relative_to(root).as_posix()
            rule = rule_for(folder)
            if rule is None:
                found.append(f'{path.relative_to(root)}: no rule for its folder; add one to {pathlib.Path(__file__).name}')
                continue
            for name in INCLUDE.findall(path.read_text(encoding='utf-8', errors='replace')):
                target = target_of(root, path, name)
                if target is None:
                    continue
                if not any(target == allowed or target.startswith(allowed + '/') for allowed in ALLOWED[rule]):
                    found.append(f'{path.relative_to(root)}: includes {name} of {target}; {rule} may include only {", ".join(ALLOWED[rule])}')
    return found


class IncludeDirection(unittest.TestCase):
    maxDiff = None

    def test_every_include_goes_in_an_allowed_direction(self):
        self.assertEqual(violations(ROOT), [])

    def test_the_tree_is_looked_at(self):
        files = [p for p in (ROOT / 'server').rglob('*.cc')]
        self.assertGreater(len(files), 20)

    def test_each_forbidden_direction_is_found(self):
        forbidden = [
            ('server/ingest/a.cc', 'server/detect/b.h'), ('server/detect/a.cc', 'server/ingest/b.h'), ('server/export/a.cc', 'server/rpc/b.h'),
            ('server/rpc/a.cc', 'server/web/b.h'), ('server/web/a.cc', 'server/export/b.h'), ('server/state/a.h', 'server/api/b.h'),
            ('server/api/a.cc', 'server/rpc/b.h'), ('kernels/cpu/a.cc', 'server/state/b.h'), ('server/state/a.cc', 'kernels/host/b.h'),
            ('client/cpp/a.cc', 'kernels/host/b.h'), ('client/cpp/a.cc', 'proto/lossgauge/ring/ring_abi.h'),
            ('proto/lossgauge/ring/a.h', 'server/state/b.h'), ('kernels/include/lossgauge/a.h', 'kernels/host/b.h'),
            ('server/detect/a.cc', 'lossgauge/v1/record.pb.h'), ('server/new_part/a.cc', 'server/state/b.h'),
            ('server/replay/a.cc', 'server/ingest/b.h'), ('server/detect/a.cc', 'server/replay/b.h'), ('server/replay/a.cc', 'lossgauge/v1/record.pb.h'),
            ('proto/tensorboard/a.h', 'server/replay/b.h'),
        ]
        for including, included in forbidden:
            with self.subTest(including=including, included=included), tempfile.TemporaryDirectory() as directory:
                root = pathlib.Path(directory).resolve()
                (root / including).parent.mkdir(parents=True)
                (root / including).write_text(f'#include "{included}"\n')
                self.assertEqual(len(violations(root)), 1)

    def test_an_include_beside_the_file_is_followed(self):
        with tempfile.TemporaryDirectory() as directory:
            root = pathlib.Path(directory).resolve()
            for folder in ('server/rpc', 'server/web'):
                (root / folder).mkdir(parents=True)
            (root / 'server/web/b.h').write_text('')
            (root / 'server/rpc/a.cc').write_text('#include "../web/b.h"\n')
            self.assertEqual(len(violations(root)), 1)


class TopLevel(unittest.TestCase):
    def test_only_the_known_names_stand_at_the_top(self):
        names = {path.name for path in ROOT.iterdir() if not path.name.startswith('.')}
        self.assertLessEqual(names, TOP_LEVEL)


if __name__ == '__main__':
    if len(sys.argv) > 1:
        ROOT = pathlib.Path(sys.argv.pop()).resolve()
    unittest.main()
