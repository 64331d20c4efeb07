// A server of one file over HTTP, to one client, by the calls of sockets that librspreload takes: serve PORT FILE.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int s = socket(AF_INET, SOCK_STREAM, 0), file = open(argv[2], O_RDONLY);
	if (s < 0 || file < 0 || bind(s, (void *)&a, sizeof a) || listen(s, 1))
		return perror("serve"), 1;
	int c = accept(s, NULL, NULL);
	if (c < 0)
		return perror("accept"), 1;
	char b[65536];
	ssize_t n = 0;
	for (size_t have = 0; !memmem(b, have, "\r\n\r\n", 4); have += n)
		if ((n = recv(c, b + have, sizeof b - have, 0)) <= 0)
			return perror("request"), 1;
	n = sprintf(b, "HTTP/1.0 200 OK\r\n\r\n");
	do {
		for (ssize_t sent = 0, k; sent < n; sent += k)
			if ((k = send(c, b + sent, n - sent, 0)) <= 0)
				return perror("send"), 1;
	} while ((n = read(file, b, sizeof b)) > 0);
	shutdown(c, SHUT_RDWR);
	return close(c);
}
