# SPDX-License-Identifier: MIT
"""ringway run: what CMD gets, what is refused, and every exit status."""
import os
import re
import shutil
import stat
import subprocess
import sys

import harness as h

TOOL, SHIM, STATIC = os.environ['TESTS_TOOL'], os.path.realpath(os.environ['TESTS_SHIM']), os.environ['TESTS_STATIC']
LIBM = '/lib/x86_64-linux-gnu/libm.so.6'


def run(*words, tool=TOOL, **env):
    """(status, stdout, stderr) of ringway WORDS."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith('RINGWAY') and k != 'LD_PRELOAD'}
    done = subprocess.run([tool, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=h.PATIENCE,
                          cwd=h.temp, env={**clean, **env}, check=False)
    return done.returncode, done.stdout, done.stderr


def expect(status, *words, says='', **env):
    got, out, err = run(*words, **env)
    h.check(got == status, f'{words}: status {got} and not {status}: {out}{err}')
    h.check(says in out + err, f'{words}: "{says}" is not in: {out}{err}')
    return out


def copy_of(program, name, mode=0o755):
    target = shutil.copy(shutil.which(program), h.path(name))
    os.chmod(target, mode)
    return target


# What CMD finds in its environment.
seen = expect(0, 'run', '-o', 'after=0', '-o', 'log-file=/dev/null', '--', 'env')
for line in ('RINGWAY=1', 'RINGWAY_AFTER=0', 'RINGWAY_LOG_FILE=/dev/null', f'LD_PRELOAD={SHIM}'):
    h.check(line in seen.splitlines(), f'{line} is not in the environment of CMD: {seen}')
seen = expect(0, 'run', 'env', LD_PRELOAD=LIBM)
h.check(f'LD_PRELOAD={SHIM}:{LIBM}' in seen.splitlines(), f'the preload that was there is lost: {seen}')
seen = expect(0, 'run', 'env', LD_PRELOAD=f'{LIBM}:{SHIM}')
h.check(f'LD_PRELOAD={LIBM}:{SHIM}' in seen.splitlines(), f'the shim is preloaded twice: {seen}')
other = copy_of(SHIM, 'libringway.so')
for before, after in ((other, SHIM), (f'{LIBM} {other}:{SHIM}', f'{LIBM}:{SHIM}')):
    seen = expect(0, 'run', 'env', LD_PRELOAD=before)
    h.check(f'LD_PRELOAD={after}' in seen.splitlines(), f'of two builds of the shim both are preloaded: {seen}')
expect(0, 'run', 'cat', '/proc/self/maps', says='libringway.so')

# CMD's own words and status.
h.check(expect(0, 'run', 'echo', '-o', 'x', '--', 'y') == '-o x -- y\n', 'words of CMD were taken for options')
expect(42, 'run', 'sh', '-c', 'exit 42')
expect(127, 'run', 'no-such-command', says='no-such-command')
expect(127, 'run', './no-such-file', says='no-such-file')
expect(127, 'run', '', says='"": no such command')
expect(126, 'run', '/etc/passwd', says='/etc/passwd')
expect(126, 'run', h.temp, says='cannot be executed')
expect(0, 'run', 'true', PATH='/nonexistent:/usr/bin:/bin')

# Wrong options: quoted, and the list of right ones or what the value may be. CMD is not started.
for wrong, rather in (('after=x', 'CALLS[:BYTES]'), ('ring=1', '4K to 1024M'), ('transports=shm,tcp', 'shm and verbs'), ('spin=-1', 'auto'),
                      ('patience=1', '10 to 600000'), ('idle=a', 'SECONDS'), ('log=loud', 'off|error'), ('summary=' + 'x' * 13000, 'PATH')):
    said = expect(2, 'run', '-o', wrong, 'echo', 'started', says=rather)
    h.check('started' not in said, f'-o {wrong[:20]}: CMD was started')
h.check('RINGWAY_AFTER=' in expect(0, 'run', '-o', 'after=', 'env', RINGWAY_AFTER='x').splitlines(), '-o after= does not take the setting away')
expect(0, 'run', 'echo', 'started', RINGWAY_AFTER='x', says='ignored')
expect(2, 'run', '-o', 'speed=1', 'true', says='"speed"')
expect(2, 'run', '-o', 'speed=1', 'true', says='-o after')
expect(2, 'run', '-o', 'after', 'true', says='"after"')
expect(2, 'run', '-o', says='NAME=VALUE')
expect(2, 'run', '-x', 'true', says='"-x"')
expect(2, 'run', says='which command')
expect(2, 'walk', says='"walk"')
expect(2, 'ps', '--jason', says='"--jason"')
expect(0, 'run', '--help', says='-o after')
expect(0, '--help', says='ringway ps')
expect(0, '--version', says='ringway ')
expect(0, says='')

# What cannot be preloaded.
expect(126, 'run', copy_of('true', 'suid', 0o4755), says='setuid')
expect(126, 'run', copy_of('true', 'sgid', 0o2755), says='setgid')
expect(0, 'run', copy_of('true', 'not-sgid', 0o2745 & ~stat.S_IXGRP), says='')
if os.geteuid() == 0:
    capable = copy_of('true', 'capable')
    subprocess.run(['setcap', 'cap_net_raw+ep', capable], stdin=subprocess.DEVNULL, timeout=20, check=True)
    expect(126, 'run', capable, says='capabilities')
with open(h.path('script'), 'w', encoding='ascii') as f:
    f.write(f'#! {h.path("suid")} x\n')
os.chmod(h.path('script'), 0o755)
expect(126, 'run', h.path('script'), says=f'its interpreter {h.path("suid")} is setuid')
expect(0, 'run', STATIC, says='statically linked')
with open(copy_of('true', 'musl'), 'r+b') as f:
    whole = f.read()
    linker = re.search(rb'/[\w./-]*/ld-linux[\w.-]*\0', whole)
    f.seek(linker.start())
    f.write(b'/lib/ld-musl-x86_64.so.1'.ljust(len(linker[0]), b'\0'))
h.check('another libc (musl)' in run('run', h.path('musl'))[2], 'a program of musl is started without a word')
with open(h.path('plain-script'), 'w', encoding='ascii') as f:
    f.write('exit 7\n')
os.chmod(h.path('plain-script'), 0o755)
expect(7, 'run', h.path('plain-script'))

# Installed under any prefix, and lost.
prefix = h.path('prefix')
os.makedirs(prefix + '/bin')
moved = shutil.copy(TOOL, prefix + '/bin/ringway')
status, _, err = run('run', 'true', tool=moved)
h.check(status == 1 and 'libringway.so' in err, f'without a shim: {status} {err}')
os.makedirs(prefix + '/lib')
shutil.copy(SHIM, prefix + '/lib/libringway.so')
status, out, err = run('run', 'env', tool=moved)
h.check(status == 0 and f'LD_PRELOAD={os.path.realpath(prefix)}/lib/libringway.so' in out, f'installed: {status} {out} {err}')
spaced = h.path('a b')
os.rename(prefix, spaced)
status, _, err = run('run', 'true', tool=spaced + '/bin/ringway')
h.check(status == 1 and 'space' in err, f'a path that LD_PRELOAD cannot name: {status} {err}')
sys.exit(0)
