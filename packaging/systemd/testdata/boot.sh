#!/bin/bash
# Boots systemd over a throw-away overlay of this machine's root, with the files
# of STAGE on top; it ends with its parent. Only basic.target is reached: other
# services of this machine do not start.
# Usage, in a mount namespace of its own: boot.sh DIRECTORY STAGE
set -eu
dir=$1 stage=$2
groups=/sys/fs/cgroup/unified
[ -d "$groups" ] || groups=/sys/fs/cgroup
group=$groups/kazahana-units-$$
mkdir "$group"
echo "$group" >"$dir/cgroup"
echo $$ >"$group/cgroup.procs"

mount --make-rprivate /
mkdir "$dir/overlay"
mount -t tmpfs tmpfs "$dir/overlay"
cd "$dir/overlay"
mkdir upper work root
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
units=root/etc/systemd/system
rm -rf "$units"/*.wants "$units"/*.service "$units"/default.target
mkdir -p "$units"
ln -s /lib/systemd/system/basic.target "$units/default.target"
for unit in networkd resolved timesyncd remount-fs update-utmp sysusers firstboot hwdb-update journal-flush; do
	ln -sf /dev/null "$units/systemd-$unit.service"
done
ln -sf /dev/null "$units/ldconfig.service"
# Files of an installed package must not be tested by mistake.
rm -rf root/etc/kazahana root/var/lib/kazahana "$units"/kazahanad* root/lib/systemd/system/kazahanad* root/usr/bin/kazahanad
rm -f root/usr/sbin/policy-rc.d root/etc/fstab
: >root/etc/machine-id
cp -a "$stage/." root/
exec env SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn --quiet --register=no --keep-unit --private-network \
	--console=pipe --directory=root --boot -- --show-status=no --log-level=warning
