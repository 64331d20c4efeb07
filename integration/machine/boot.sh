#!/bin/sh
# In new mount, pid, uts, ipc and cgroup namespaces: a root, a small /dev, systemd.
# use: boot.sh ROOT DIR NAME   (ROOT is shared and stays as it is, DIR has the changes)
set -eu
root=$1 dir=$2 name=$3 r=$2/root
mount --make-rprivate /
hostname "$name"
mkdir -p "$dir/changes" "$dir/work" "$r"
mount -t overlay -o "lowerdir=$root,upperdir=$dir/changes,workdir=$dir/work" overlay "$r"
echo "$name" >"$r/etc/hostname"
[ -e "$dir/changes/etc/machine-id" ] || tr -d - </proc/sys/kernel/random/uuid >"$r/etc/machine-id" # udev makes MAC addresses of it
mount -t proc proc "$r/proc"
mount -t sysfs sysfs "$r/sys"
mount -t cgroup2 cgroup2 "$r/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$r/dev"
node() { mknod -m "$1" "$r/dev/$2" "$3" "$4" "$5"; }
mkdir -p "$r/dev/net" "$r/dev/pts" "$r/dev/shm"
node 666 null c 1 3; node 666 zero c 1 5; node 666 full c 1 7; node 666 random c 1 8; node 666 urandom c 1 9; node 666 tty c 5 0
node 666 net/tun c 10 200; node 660 loop-control c 10 237
node 660 nbd0 b 43 0
for i in 0 1 2 3 4 5 6 7; do node 660 "loop$i" b 7 "$i"; done
[ ! -d /lib/modules ] || { mkdir -p "$r/lib/modules"; mount --rbind /lib/modules "$r/lib/modules"; }
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$r/dev/pts"
ln -s pts/ptmx "$r/dev/ptmx"
ln -s /proc/self/fd "$r/dev/fd"; ln -s /proc/self/fd/0 "$r/dev/stdin"; ln -s /proc/self/fd/1 "$r/dev/stdout"; ln -s /proc/self/fd/2 "$r/dev/stderr"
mount -t tmpfs tmpfs "$r/dev/shm"
mount -t tmpfs -o mode=755 tmpfs "$r/run"
# Where /dev is no devtmpfs, systemd listens to udev only if it finds this when it begins.
[ ! -e "$r/lib/systemd/systemd-udevd" ] || { mkdir "$r/run/udev"; : >"$r/run/udev/control"; }
mount -t tmpfs -o mode=1777 tmpfs "$r/tmp"
cd "$r"
mkdir -p .old
pivot_root . .old
umount -l /.old
rmdir /.old
mount --make-rshared / # as systemd has it where it is not in a container: what is unmounted is so for all services
exec env -i container=lab PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb /lib/systemd/systemd --log-target=console --show-status=0
