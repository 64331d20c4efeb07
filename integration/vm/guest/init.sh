#!/bin/busybox sh
# First stage: the host's file system, read-only under an overlay in memory.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for m in $($b cat /mod/order); do $b insmod "/mod/$m"; done
$b mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose hostroot /ro || $b poweroff -f
$b mount -t tmpfs tmpfs /rw
$b mkdir -p /rw/upper /rw/work
$b mount -t overlay -o lowerdir=/ro,upperdir=/rw/upper,workdir=/rw/work overlay /root
$b mkdir -p /root/run /root/mnt/out
$b cp /stage2 /root/mnt/stage2
for d in proc sys dev; do $b mount --move "/$d" "/root/$d"; done
exec $b switch_root /root /bin/bash /mnt/stage2
