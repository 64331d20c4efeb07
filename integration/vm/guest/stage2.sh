# Second stage, on the overlay: a plain Debian without services. It runs the
# script and leaves its exit status.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
stty -F /dev/ttyS0 -onlcr
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/lock /dev/pts /dev/shm /lib/modules
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
share=trans=virtio,version=9p2000.L,msize=262144
mount -t 9p -o "ro,$share,cache=loose" modules /lib/modules
mount -t 9p -o "$share" out /mnt/out
hostname vm
ip link set lo up
ulimit -l unlimited
bash /mnt/out/script </dev/null
echo $? >/mnt/out/status
sync
exec busybox poweroff -f
