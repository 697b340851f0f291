# SPDX-License-Identifier: MIT
"""The rules of the house, as tests: rules.py RULE, with TESTS_SHIM and TESTS_TOOL in the environment."""
import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PARTS = ('ringbuf', 'shim', 'tools', 'tests')
LONGEST = 600

# Files of the shim by layer, lowest first; a name stands for every file that begins with it, the longest name wins. A
# header includes headers of its own layer and of those below; so does every file of the lowest layer. What is not named
# here belongs to "moves".
LAYERS = (
    ('floor', ('text', 'glibc', 'options', 'log', 'own_fd', 'clock', 'real', 'signals', 'counted', 'asleep', 'fdtab', 'unseen', 'frame', 'le', 'family', 'circle', 'handler', 'maps', 'lane_lock', 'nego_msg',
               'nego_state', 'diag', 'calls_check', 'unwound', 'stepped', 'links')),
    ('records', ('conn', 'far', 'guard', 'summary', 'stats_slots')),
    ('moves', ('nego', 'switch', 'wait', 'ready', 'epoll', 'inherit', 'init')),
    ('wrappers', ('io_calls', 'msg_calls', 'sock_calls', 'sockopt_calls', 'fd_calls', 'proc_calls', 'exec_calls', 'stdio_calls',
                  'syscall_calls', 'sandbox_calls', 'limit_calls', 'jump_calls', 'loader_calls', 'ready_calls')),
)

problems = []


def problem(text):
    problems.append(text)


def read(path):
    with open(os.path.join(TOP, path), encoding='utf-8') as f:
        return f.read()


def files(*endings, parts=PARTS):
    """The sources below these directories that end so."""
    for part in parts:
        for directory, inner, names in os.walk(os.path.join(TOP, part)):
            inner[:] = sorted(d for d in inner if not d.startswith(('build', '__pycache__', '.')))
            for name in sorted(names):
                if name.endswith(endings):
                    yield os.path.relpath(os.path.join(directory, name), TOP)


def code(path):
    """The file's lines without comments and string literals (lines keep their numbers)."""
    text = read(path)
    pattern = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.S)

    def blank(match):
        found = match.group()
        return '""' if found[0] == '"' else '\n' * found.count('\n')
    return re.sub(pattern, blank, text).split('\n')


def includes(path):
    """(line number, included file as a path from the top) of each quoted include."""
    for number, line in enumerate(read(path).split('\n'), 1):
        match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if not match:
            continue
        beside = os.path.normpath(os.path.join(os.path.dirname(path), match[1]))
        yield number, beside if os.path.exists(os.path.join(TOP, beside)) else match[1]


def layer(path):
    stem = os.path.splitext(os.path.basename(path))[0]
    best = (0, 2)
    for rank, (_, names) in enumerate(LAYERS):
        for name in names:
            if (stem == name or stem.startswith(name + '_')) and len(name) > best[0]:
                best = (len(name), rank)
    return best[1]


def rule_includes():
    """Includes point down only."""
    for path in files('.c', '.h', parts=('ringbuf', 'shim', 'tools')):
        for number, target in includes(path):
            where = f'{path}:{number} includes {target}'
            if path.startswith('ringbuf/') and not target.startswith('ringbuf/'):
                problem(f'{where}: the floor knows nothing above it')
            elif path.startswith('tools/') and not (target.startswith('tools/') or target.endswith('.def')
                                                    or target in ('ringbuf/stats.h', 'shim/options.h')):
                problem(f'{where}: a tool sees ringbuf/stats.h, shim/options.h and the tables, nothing else')
            elif path.startswith('shim/') and target.startswith(('tools/', 'tests/')):
                problem(f'{where}: that is not below it')
            elif path.startswith('shim/') and target.startswith('shim/') and target.endswith('.h'):
                if (path.endswith('.h') or layer(path) == 0) and layer(target) > layer(path):
                    problem(f'{where}: {LAYERS[layer(path)][0]} must not need {LAYERS[layer(target)][0]}')
        if re.search(r'#\s*include\s*<(rdma|infiniband)/', read(path)) and not re.search(r'verbs|nego_remote', path):
            problem(f'{path}: rdma headers only in the verbs files and nego_remote.c')


def rule_cycles():
    """No header includes itself by a detour."""
    graph = {path: [t for _, t in includes(path) if t.endswith('.h')] for path in files('.h', parts=('ringbuf', 'shim', 'tools'))}

    def visit(path, trail):
        if path in trail:
            problem(' -> '.join([*trail[trail.index(path):], path]))
            return
        for target in graph.get(path, []):
            visit(target, [*trail, path])
    for path in graph:
        visit(path, [])


def only_in(pattern, allowed, why, parts=('ringbuf', 'shim', 'tools')):
    for path in files('.c', '.h', parts=parts):
        if path in allowed:
            continue
        for number, line in enumerate(code(path), 1):
            if re.search(pattern, line):
                problem(f'{path}:{number}: {why}: {line.strip()}')


def rule_dlsym():
    """dlsym only in real.c."""
    only_in(r'\bdlv?sym\b', ('shim/real.c',), 'dlsym belongs to real.c')


def rule_ordering():
    """Memory orders are named in atomic.h alone, and volatile is not used for sharing."""
    only_in(r'\bmemory_order_|\b__ATOMIC_|\batomic_\w+_explicit\b|\b__sync_', ('ringbuf/atomic.h',), 'orderings belong to atomic.h')
    only_in(r'(?<!asm )(?<!asm__ )(?<!\()\bvolatile\b(?! sig_atomic_t)', (), 'volatile orders nothing')


def rule_length():
    """A file is one idea."""
    for path in files('.c', '.h', '.py', '.sh', '.S'):
        lines = read(path).count('\n')
        if lines > LONGEST:
            problem(f'{path}: {lines} lines, more than {LONGEST}')


def rule_paths():
    """Nothing names a path of the machine it was written on, and everything says its licence."""
    everywhere = re.compile(re.escape(TOP) + r'\b|/home/[a-z]|/root/[a-z.]')
    named = [*files('.c', '.h', '.py', '.sh', '.md', '.def', '.build', '.pml', '.S', '.1', '.7', '.steps'),
             'README.md', 'meson.build', 'tools/check', 'tools/quickstart', '.ci/run']
    for path in named:
        text = read(path)
        for number, line in enumerate(text.split('\n'), 1):
            if everywhere.search(line) and path != 'tests/check/rules.py':
                problem(f'{path}:{number}: a path of one machine: {line.strip()}')
        if path.endswith(('.c', '.h', '.py', '.S', '.def')) and 'SPDX-License-Identifier: MIT' not in text[:200]:
            problem(f'{path}: does not begin with its licence')


def rows(path, name):
    """The string literals of each NAME(...) row of a table."""
    text = re.sub(r'/\*.*?\*/', '', read(path), flags=re.S)
    for match in re.finditer(r'^' + name + r'\(((?:"(?:\\.|[^"\\])*"|[^"])*?)\)\s*$', text, re.M):
        yield [re.sub(r'\\(.)', r'\1', s) for s in re.findall(r'"((?:\\.|[^"\\])*)"', match[1])]


def plain(text):
    """A manual page as the words a reader sees, roughly."""
    text = re.sub(r'^\.[A-Za-z]+ ?', '', text, flags=re.M)
    return ' '.join(re.sub(r'\\f[A-Z]|\\&', '', text).replace('\\-', '-').split())


def roff(text):
    return text.replace('\\', '\\e').replace('-', '\\-').replace("'", '\\(aq')


def tables():
    """(file, name of the table in it, how its lines are written): what the documents repeat of the .def tables."""
    options = [(*row[:3], row[3]) for row in rows('shim/options.def', 'OPTION')]
    reasons = [row for row in rows('ringbuf/reasons.def', 'REASON') if row[0] and row[1] != 'not given any more']
    if len(options) < 5 or len(reasons) < 10:
        problem(f'only {len(options)} options and {len(reasons)} reasons found: the tables are not understood')
    yield 'README.md', 'settings', ['', '| name | value | default | meaning |', '| --- | --- | --- | --- |',
                                    '| `RINGWAY` | 1 | - | enables Ringway; anything else leaves the process dormant |',
                                    *(f'| `{name}` | {values.replace("|", " or ")} | {preset or "-"} | {sentence} |'
                                      for name, values, preset, sentence in options), '']
    yield 'tools/man/libringway.7', 'settings', [
        line for name, values, preset, sentence in options
        for line in ('.TP', f'.BI {name}= "{roff(values)}"',
                     roff(sentence[0].upper() + sentence[1:] + (f' (default: {preset}).' if preset else '.')))]
    yield 'tools/man/libringway.7', 'reasons', [
        line for word, sentence in reasons for line in ('.TP', f'.B {roff(word)}', roff(sentence[0].upper() + sentence[1:] + '.'))]


def rule_documented():
    """The README and libringway(7) have the settings and reasons just as the .def tables have them."""
    for path, name, lines in tables():
        text = read(path)
        match = re.search(r'^(?:<!--|\.\\") ' + name + r': .*\n((?:.*\n)*?)(?:<!--|\.\\") end', text, re.M)
        wanted = ''.join(line + '\n' for line in lines)
        if not match:
            problem(f'{path} has no place for its table of {name}')
        elif match[1] != wanted:
            if '--write' in sys.argv:
                with open(os.path.join(TOP, path), 'w', encoding='utf-8') as f:
                    f.write(text[:match.start(1)] + wanted + text[match.end(1):])
            else:
                problem(f'{path}: the table of {name} is not that of the .def file; tests/check/rules.py documented --write mends it')


def rule_readme():
    """The commands that the README and the manual pages show exist, with the options that they show."""
    known = {row[0].removeprefix('RINGWAY_').lower().replace('_', '-') for row in rows('shim/options.def', 'OPTION')}
    commands = re.findall(r'^\s*\{ "(\w+)",', read('tools/main.c'), re.M)
    readme = read('README.md')
    blocks = ''.join(re.findall(r'^```\w*\n(.*?)^```', readme, re.S | re.M))
    for path in set(re.findall(r'(?<![\w/.-])((?:tools|tests|shim|ringbuf|\.ci)/[\w./-]*\w)', readme)):
        if not os.path.exists(os.path.join(TOP, path)):
            problem(f'README.md names {path}, which does not exist')
    manual = read('tools/man/ringway.1').replace('\\-', '-') + read('tools/man/libringway.7').replace('\\-', '-')
    for text in (blocks, manual):
        for word in re.findall(r'\bringway (run|ps|[a-z]+)\b(?= |$)', text if text is blocks else ''):
            if word not in commands:
                problem(f'README.md shows "ringway {word}", which is no command')
        for name in re.findall(r'-o ([a-z-]+)=', text):
            if name not in known:
                problem(f'"-o {name}=" is shown, but there is no such option')
    said = subprocess.run([os.environ['TESTS_TOOL'], '--help'], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=20, check=True).stdout
    for command in commands:
        if f'ringway {command}' not in said or f'ringway {command}' not in plain(manual) or f'ringway {command}' not in readme:
            problem(f'ringway {command} is missing in --help, ringway(1) or README.md')


def rule_manual():
    """The manual pages are well formed."""
    for page in ('tools/man/ringway.1', 'tools/man/libringway.7'):
        done = subprocess.run(['man', '--warnings', '-E', 'UTF-8', '-l', '-Tutf8', '-Z', os.path.join(TOP, page)],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30,
                              env={**os.environ, 'LC_ALL': 'C.UTF-8', 'MANROFFSEQ': ''}, check=False)
        if done.returncode or done.stderr.strip():
            problem(f'{page}: {done.stderr.strip() or done.returncode}')


def rule_needed():
    """The shim needs libc and nothing else."""
    said = subprocess.run(['readelf', '-d', os.environ['TESTS_SHIM']], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=20, check=True).stdout
    needed = re.findall(r'\(NEEDED\).*\[(.*)\]', said)
    if needed != ['libc.so.6']:
        problem(f'libringway.so needs {needed}')
    if re.search(r'TEXTREL|\(RPATH\)|\(RUNPATH\)', said):
        problem('libringway.so has text relocations or a run path')


def rule_exports():
    """What the shim exports is what calls.def lists."""
    text = re.sub(r'/\*.*?\*/', '', read('shim/calls.def'), flags=re.S)
    listed = set(re.findall(r'^CALL(?:_BARE|_VA)?\([^,]*,\s*(\w+)', text, re.M)) | set(re.findall(r'^EXPORT_ONLY\((\w+)\)', text, re.M))
    said = subprocess.run(['nm', '-D', '--defined-only', '--without-symbol-versions', os.environ['TESTS_SHIM']],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=True).stdout
    exported = {line.split()[-1] for line in said.splitlines() if line.split()[1] in 'TWiBDV'}
    if len(listed) < 50:
        problem(f'only {len(listed)} calls found: the table is not understood')
    for name in sorted(listed - exported):
        problem(f'{name} is listed in calls.def, but not exported')
    for name in sorted(exported - listed):
        problem(f'{name} is exported, but not listed in calls.def')


def rule_packages():
    """The lists of packages and of allowed skips are well formed."""
    packages = {line.split()[0]: line.split()[1] for line in read('tools/packages').splitlines()
                if line.strip() and not line.startswith('#')}
    for name, use in packages.items():
        if use not in ('build', 'demo', 'quick', 'test'):
            problem(f'tools/packages: {name} is for "{use}", which means nothing')
    for line in read('tests/allowed-skips').splitlines():
        if line.strip() and not line.startswith('#') and not re.match(r'[\w-]+/[^:]+: \S', line):
            problem(f'tests/allowed-skips: "{line}" is not "suite/name: reason"')


def main():
    names = [name[5:] for name in globals() if name.startswith('rule_')]
    name = sys.argv[1] if len(sys.argv) > 1 else ''
    if name not in names:
        sys.exit(f'no rule "{name}": {", ".join(names)}')
    rule = globals()['rule_' + name]
    rule()
    for text in problems:
        print(text)
    print(f'{rule.__doc__.splitlines()[0]} {len(problems)} problems')
    return 1 if problems else 0


sys.exit(main())
