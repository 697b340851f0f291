# SPDX-License-Identifier: MIT
"""kernel.py: prepares what a guest boots from, once, in a cache: a Debian kernel and an initramfs with the modules below.

The kernel's package is downloaded and unpacked, never installed. The cache is TESTS_VM_CACHE, or ringway-vm in the
user's cache directory. It holds the package and, for each state of this file, a directory with the kernel, the initramfs
and their checksums; whatever does not match its checksum is made again. A lock makes concurrent runs wait for each other.
"""
import contextlib
import fcntl
import glob
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile

# The first that apt knows is taken: newer than Debian 12's own, so that two kernels are tried, this machine's and this one.
KERNELS = ('linux-image-6.12-amd64', 'linux-image-amd64')

# What the kernel builds in is passed over; what they need is found. A row more, and the initramfs is made again.
MODULES = (
    'virtio_pci', 'virtio_console', 'virtio_net', '9pnet_virtio', '9p', 'overlay',  # what a guest stands on
    'crc32_generic', 'rdma_rxe', 'ib_uverbs', 'rdma_ucm',  # soft-RoCE: rxe asks for "crc32" by name at run time
    'veth', 'dummy', '8021q',  # devices
    'sch_netem', 'sch_ingress', 'sch_tbf', 'sch_prio', 'cls_u32', 'cls_matchall', 'act_gact', 'act_mirred',  # for tc
    'inet_diag', 'tcp_diag', 'unix_diag',  # for ss
    'tls', 'gcm', 'ghash_generic',  # encryption by the kernel: its cipher, too, is asked for by name
)

# Moves to this machine's files, which stay untouched below an overlay, and becomes the process that takes commands.
INIT = '''#!/bin/sh
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
while read -r m; do insmod /modules/$m || echo "no module $m"; done </modules/order
p9=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o $p9,ro,cache=loose root /ro && mount -t tmpfs tmpfs /rw && mkdir /rw/up /rw/work &&
	mount -t overlay -o lowerdir=/ro,upperdir=/rw/up,workdir=/rw/work overlay /new || poweroff -f
mount -t proc proc /new/proc; mount -t sysfs sys /new/sys; mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/shm /new/dev/pts
mount -t tmpfs shm /new/dev/shm; mount -t devpts pts /new/dev/pts; mount -t tmpfs run /new/run
mkdir /new/run/out && mount -t 9p -o $p9,rw,cache=none out /new/run/out
exec chroot /new /usr/bin/python3 -B -I /run/out/agent.py
'''
APPLETS = ('sh', 'mount', 'mkdir', 'insmod', 'chroot', 'poweroff')


APT_OPTIONS = ('-o', 'Acquire::Retries=3', '-o', 'Acquire::http::Timeout=30', '-o', 'Acquire::https::Timeout=30')
SCRATCH, KEPT = 'scratch.', 4
SIGNED = b'~Module signature appended~\n'


class Unprepared(Exception):
    """There is no kernel to boot; the text says why."""


def cache_directory():
    home = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
    return os.environ.get('TESTS_VM_CACHE') or os.path.join(home, 'ringway-vm')


def _output(argv, **more):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, **more)
    if done.returncode:
        raise Unprepared(f'{" ".join(argv)}: {done.stderr.decode(errors="replace").strip()[-400:]}')
    return done.stdout.decode()


def _package_name():
    """The package with the kernel itself, which a name in KERNELS only depends on."""
    for name in KERNELS:
        with contextlib.suppress(Unprepared):
            found = re.search(r'^\s*Depends: (linux-image-\d\S+)$', _output(['apt-cache', 'depends', name], timeout=60), re.M)
            if found:
                return found[1]
    raise Unprepared(f'apt knows none of {", ".join(KERNELS)}; "apt-get update" may help')


def _package(cache):
    """The newest package file in the cache, downloaded if there is none yet."""
    have = sorted(glob.glob(os.path.join(cache, 'linux-image-*.deb')), key=os.path.getmtime)
    if have:
        return have[-1]
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=cache) as place:
        try:
            _download(place)
        except Unprepared:
            if os.geteuid() != 0:
                raise
            _output(['apt-get', '-q', *APT_OPTIONS, 'update'], timeout=240)  # old lists name packages that are gone
            _download(place)
        arrived, = glob.glob(os.path.join(place, '*.deb'))
        target = os.path.join(cache, os.path.basename(arrived))
        os.rename(arrived, target)
        return target


def _download(place):
    # Root's apt would hand over to a user who may not write here, and warn.
    sandbox = ['-o', 'APT::Sandbox::User=root'] if os.geteuid() == 0 else []
    _output(['apt-get', '-q', *APT_OPTIONS, *sandbox, 'download', _package_name()], cwd=place, timeout=400)


class Modules:
    """The modules of an unpacked kernel package, and what each needs."""

    def __init__(self, directory):
        self.paths, self.order = {}, {}
        for where, _, names in os.walk(directory):
            for name in names:
                if re.search(r'\.ko(\.xz)?$', name):
                    self.paths[self._plain(name)] = os.path.join(where, name)
        with open(os.path.join(directory, 'modules.builtin'), encoding='ascii') as f:
            self.builtin = {self._plain(os.path.basename(line.strip())) for line in f}

    @staticmethod
    def _plain(name):
        return name.partition('.ko')[0].replace('-', '_')

    @staticmethod
    def _light(data):
        """Without its signature and its types for BPF, which take the kernel most of the time that loading takes."""
        if data.endswith(SIGNED):
            length = int.from_bytes(data[-len(SIGNED) - 4:-len(SIGNED)], 'big')
            data = data[:-len(SIGNED) - 12 - length]
        return data.replace(b'\0.BTF\0', b'\0.xTF\0')

    def add(self, name):
        """Put the module behind everything that it needs, into order: {name: contents}."""
        name = self._plain(name)
        if name in self.order or name in self.builtin:
            return
        if name not in self.paths:
            raise Unprepared(f'this kernel has no module {name}')
        with open(self.paths[name], 'rb') as f:
            data = f.read()
        if self.paths[name].endswith('.xz'):
            data = lzma.decompress(data)
        data = self._light(data)
        needed = re.search(rb'\0depends=([^\0]*)\0', data)
        for other in (needed[1].decode().split(',') if needed else []):
            if other:
                self.add(other)
        self.order[name] = data


class Archive:
    """A cpio archive of the form that the kernel unpacks ("newc"). Not compressed: unpacking is slow under emulation."""

    def __init__(self, path):
        self.file, self.count = open(path, 'wb'), 0

    def add(self, name, mode, data=b''):
        self.count += 1
        fields = (self.count, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        head = b'070701' + b''.join(b'%08x' % field for field in fields) + name.encode() + b'\0'
        for part in (head, data):
            self.file.write(part + b'\0' * (-len(part) % 4))

    def close(self):
        self.add('TRAILER!!!', 0)
        self.file.close()


def _initramfs(path, modules):
    archive = Archive(path)
    for name in ('bin', 'dev', 'proc', 'sys', 'modules', 'ro', 'rw', 'new'):
        archive.add(name, 0o40755)
    with open(_busybox(), 'rb') as f:
        archive.add('bin/busybox', 0o100755, f.read())
    for name in APPLETS:
        archive.add('bin/' + name, 0o120777, b'busybox')
    for name, data in modules.order.items():
        archive.add(f'modules/{name}.ko', 0o100644, data)
    archive.add('modules/order', 0o100644, ''.join(f'{name}.ko\n' for name in modules.order).encode())
    archive.add('init', 0o100755, INIT.encode())
    archive.close()


def _busybox():
    path = shutil.which('busybox')
    if not path:
        raise Unprepared('busybox is not installed (Debian: busybox-static)')
    return path


def _sum(path):
    whole = hashlib.sha256()
    with open(path, 'rb') as f:
        while part := f.read(1 << 20):
            whole.update(part)
    return whole.hexdigest()


def _good(directory):
    """Is everything there as it was made?"""
    with contextlib.suppress(OSError, ValueError), open(os.path.join(directory, 'sums'), encoding='ascii') as f:
        rows = dict(line.split() for line in f)
        return set(rows) == {'vmlinuz', 'initramfs'} and all(_sum(os.path.join(directory, n)) == s for n, s in rows.items())
    return False


def _make(cache, directory):
    for left in glob.glob(os.path.join(cache, SCRATCH + '*')):  # by somebody who was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=cache) as place:
        package = _package(cache)
        try:
            _output(['dpkg-deb', '-x', package, place + '/all'], timeout=300)
        except Unprepared:
            os.unlink(package)
            _output(['dpkg-deb', '-x', _package(cache), place + '/all'], timeout=300)
        kernel, = glob.glob(place + '/all/boot/vmlinuz-*')
        modules = Modules(*glob.glob(place + '/all/lib/modules/*'))
        for name in MODULES:
            modules.add(name)
        os.mkdir(place + '/new')
        os.rename(kernel, place + '/new/vmlinuz')
        _initramfs(place + '/new/initramfs', modules)
        with open(place + '/new/sums', 'w', encoding='ascii') as f:
            for name in ('vmlinuz', 'initramfs'):
                f.write(f'{name} {_sum(os.path.join(place, "new", name))}\n')
        shutil.rmtree(directory, ignore_errors=True)
        os.rename(place + '/new', directory)
    made = sorted(glob.glob(os.path.join(cache, '*', 'sums')), key=os.path.getmtime)
    for old in made[:-KEPT]:
        shutil.rmtree(os.path.dirname(old), ignore_errors=True)


@contextlib.contextmanager
def prepared():
    """(kernel, initramfs), ready to boot and not replaced by anybody as long as the context lasts."""
    cache = cache_directory()
    os.makedirs(cache, exist_ok=True)
    with open(__file__, 'rb') as f:
        key = hashlib.sha256(f.read() + _sum(_busybox()).encode()).hexdigest()[:16]
    directory = os.path.join(cache, key)
    with open(os.path.join(cache, 'lock'), 'w', encoding='ascii') as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not _good(directory):
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _good(directory):  # somebody else may have made it while this one waited
                try:
                    _make(cache, directory)
                except (OSError, ValueError, TypeError, lzma.LZMAError, subprocess.SubprocessError) as error:
                    raise Unprepared(f'{type(error).__name__}: {error}') from error
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield os.path.join(directory, 'vmlinuz'), os.path.join(directory, 'initramfs')


def main():
    try:
        with prepared() as (kernel, _):
            print(f'ready: {os.path.dirname(kernel)}')
    except Unprepared as error:
        print(f'no kernel for the guests: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
