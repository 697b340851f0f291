# SPDX-License-Identifier: MIT
# Installing what tools/packages lists. Sourced by tools/quickstart and tools/check (POSIX sh).
# Every step is bounded: a lock held by somebody else or a dead mirror is an error after a while, never a hang.

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

# packages_install LOG PACKAGE... : install them, services not started, everything said goes to LOG.
packages_install()
{
	log=$1
	shift
	as_root=
	if [ "$(id -u)" != 0 ]; then
		if ! command -v sudo >/dev/null; then
			echo "not root and no sudo here; install these first: $*" >&2
			return 1
		fi
		as_root='sudo -n'
		[ -t 2 ] && as_root=sudo
	fi
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
