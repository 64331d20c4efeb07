// 10,000 connects and disconnects in one program, each with objects of its own and data both ways: no files, threads and
// memory are left. It ends with "all is well", or at the first thing that is not.
#include <dirent.h>
#include "ends.h"

struct use { unsigned files, threads, kib; };

static struct use measured(void)
{
	struct use u = {};
	char line[256];
	DIR *d = opendir("/proc/self/fd");
	CHECK(d);
	while (readdir(d))
		u.files++;
	closedir(d);
	FILE *f = fopen("/proc/self/status", "re");
	CHECK(f);
	while (fgets(line, sizeof line, f)) {
		sscanf(line, "Threads: %u", &u.threads);
		sscanf(line, "VmRSS: %u", &u.kib);
	}
	fclose(f);
	return u;
}

int main(int argc, char **argv)
{
	int most = argc > 1 ? atoi(argv[1]) : 10000;
	struct rdma_event_channel *ch;
	struct sockaddr_in at;
	struct use before = {}, after;
	setvbuf(stdout, NULL, _IOLBF, 0);
	struct rdma_cm_id *ln = listening(&ch, &at, 16);
	for (int i = 0; i < most; i++) {
		struct end a, b;
		if (i == most / 10)
			before = measured();
		connect_ends(ch, &at, &a, &b);
		exchange(&a, &b, i, 1000, i % 2);
		disconnect_ends(ch, &a, &b);
	}
	after = measured();
	printf("files %u and %u, threads %u and %u, KiB %u and %u\n", before.files, after.files, before.threads, after.threads, before.kib, after.kib);
	// What has closed is given back a moment later.
	for (int i = 0; i < 1000 && measured().files > before.files; i++)
		usleep(1000);
	CHECK(measured().files <= before.files && after.threads <= before.threads + 8 && after.kib <= before.kib + (16 << 10));
	rdma_destroy_id(ln);
	rdma_destroy_event_channel(ch);
	printf("all is well\n");
	return 0;
}
