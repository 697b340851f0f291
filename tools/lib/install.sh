# SPDX-License-Identifier: MIT
# What comes before the building: is this a place for it, and installing what tools/packages lists. Sourced by
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

# packages_install LOG PACKAGE... : install them, services not started, everything said goes to LOG; packages_allowed first.
packages_install()
{
	log=$1
	shift
	# Packages such as redis-server would start their daemon: not what somebody who runs a test asked for.
	policy=/usr/sbin/policy-rc.d
	made_policy=
	if [ ! -e "$policy" ]; then
		printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null && $as_root chmod 755 "$policy" && made_policy=1
	fi
	options='-q -y -o Acquire::Retries=3 -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30 -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0'
	status=0
	# shellcheck disable=SC2086
	{
		$as_root timeout -k 10 240 env DEBIAN_FRONTEND=noninteractive apt-get $options update ||
			echo "apt-get update failed; trying with the lists that are here"
		$as_root timeout -k 10 600 env DEBIAN_FRONTEND=noninteractive apt-get $options install --no-install-recommends "$@" || status=$?
	} </dev/null >>"$log" 2>&1
	[ -z "$made_policy" ] || $as_root rm -f "$policy"
	if [ "$status" != 0 ]; then
		tail -n 15 "$log" >&2
		echo "apt-get install failed (exit $status); its output is in $log" >&2
	fi
	return "$status"
}
