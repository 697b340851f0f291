# SPDX-License-Identifier: MIT
# What comes before the building: is this a place for it, what was built there before, and installing what tools/packages lists. Sourced by
# tools/quickstart and tools/check (POSIX sh).
# Every step is bounded: a lock held by somebody else or a dead mirror is an error after a while, never a hang.

# place_refused TOP : says why programs cannot run under Ringway from a build in there; false if they can.
place_refused()
{
	case $1 in
	*[' :$']*) echo "\"$1\": LD_PRELOAD cannot name a path with a space, a colon or a dollar sign; move it" ;;
	*) return 1 ;;
	esac
}

# cannot_write DIRECTORY : makes it; says why nothing can be put there, false if it can.
cannot_write()
{
	if ! mkdir -p "$1" 2>/dev/null; then
		echo "cannot make $1"
	elif [ ! -w "$1" ]; then
		echo "cannot write to $1, which belongs to $(stat -c %U "$1"); remove it first"
	else
		return 1
	fi
}

# drop_moved BUILD : removes it if meson has set it up under another path: the tree was moved, or copied.
drop_moved()
{
	info=$1/meson-info/meson-info.json
	[ ! -e "$info" ] ||
		/usr/bin/python3 -c 'import json, sys; sys.exit(json.load(open(sys.argv[1]))["directories"]["build"] != sys.argv[2])' "$info" "$1" 2>/dev/null ||
		rm -rf "$1"
}

# packages_missing LIST USE... : names of the listed packages for these uses that are not installed.
packages_missing()
{
	list=$1
	shift
	uses=" $* "
	while read -r package use _; do
		case $package in ''|'#'*) continue ;; esac
		case $uses in *" $use "*) ;; *) continue ;; esac
		dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || printf '%s ' "$package"
	done <"$list"
}

# packages_allowed PACKAGE... : may we install them? If not it says how they get here; if so as_root is what goes before a command.
packages_allowed()
{
	as_root= why=
	if ! command -v apt-get >/dev/null; then
		echo "there is no apt-get here; install what these packages of Debian hold, then start this again: $*"
		return 1
	fi
	[ "$(id -u)" != 0 ] || return 0
	as_root='sudo -n'
	[ ! -t 2 ] || as_root=sudo
	if ! command -v sudo >/dev/null; then
		why='there is no sudo'
	elif [ -t 2 ]; then
		sudo true || why='sudo refuses'
	elif ! why=$(sudo -n true 2>&1); then
		why=$(echo "${why:-sudo refuses}" | tail -n 1)
	else
		why=
	fi
	[ -n "$why" ] || return 0
	echo "not root, and $why; start this as root, or again after root has run: apt-get install --no-install-recommends $*"
	return 1
}

policy_mark='made by ringway while it installs packages'

# packages_install LOG PACKAGE... : install them, services not started, everything said goes to LOG; packages_allowed first.
packages_install()
{
	log=$1
	shift
	# Ctrl-C goes to apt-get, in the foreground, which lets dpkg, in a terminal of its own, end what it has in hand. Then what is here is undone.
	stopped=
	trap 'stopped=130' INT
	trap 'stopped=143' TERM
	trap 'stopped=129' HUP
	# Packages such as redis-server would start their daemon: not what somebody who runs a test asked for.
	policy=/usr/sbin/policy-rc.d
	made_policy=
	if [ ! -e "$policy" ] || grep -qs "$policy_mark" "$policy"; then
		made_policy=1
		printf '#!/bin/sh\n# %s\nexit 101\n' "$policy_mark" | $as_root tee "$policy" >/dev/null && $as_root chmod 755 "$policy"
	fi
	options='-q -y -o Acquire::Retries=3 -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30 -o DPkg::Lock::Timeout=120'
	status=0
	# shellcheck disable=SC2086
	{
		$as_root timeout --foreground -k 10 240 env DEBIAN_FRONTEND=noninteractive apt-get $options update ||
			echo "apt-get update failed; trying with the lists that are here"
		[ -n "$stopped" ] ||
			$as_root timeout --foreground -k 10 600 env DEBIAN_FRONTEND=noninteractive apt-get $options install --no-install-recommends "$@" ||
			status=$?
	} </dev/null >>"$log" 2>&1
	[ -z "$made_policy" ] || $as_root rm -f "$policy"
	trap - INT TERM HUP
	if [ -n "$stopped" ]; then
		echo 'stopped' >&2
		return "$stopped"
	fi
	if [ "$status" != 0 ]; then
		tail -n 15 "$log" >&2
		echo "apt-get install failed (exit $status); its output is in $log" >&2
	fi
	return "$status"
}
