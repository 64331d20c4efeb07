// A librdmacm whose functions are bound as it calls them.
#include <fcntl.h>
#include <unistd.h>

void met(void);

int later(void)
{
	met();
	int fd = open("/dev/null", O_RDONLY);
	return fd < 0 || getppid() < 0 || close(fd); // none of them is bound before
}
