#!/bin/sh
# SPDX-License-Identifier: MIT
# exports.sh calls.def > exports.map: the version script. Without a version name: one would keep the dynamic linker from
# taking our read() for a read@GLIBC_2.2.5.
echo '{ global:'
sed -n -e 's/^EXPORT_ONLY(\([^)]*\)).*/	\1;/p' -e 's/^CALL[A-Z_]*([^,]*, *\([A-Za-z0-9_]*\),.*/	\1;/p' "$1"
echo 'local: *; };'
