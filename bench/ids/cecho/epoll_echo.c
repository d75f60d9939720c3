// The echo server that is hard to beat: one thread, one epoll loop,
// level-triggered; a read and a write for each event.
//
// Arguments are sockets to listen on, each REQUEST-SIZE,ANSWER-SIZE,PATH: each
// request of so many bytes is answered with itself and then zeros, up to so
// many bytes; with sizes of 0, whatever comes goes back at once.

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { READ_SIZE = 4096, MOST_EVENTS = 256 };

// A listener, or a connection that one has accepted.
struct peer {
	int fd;
	int listens;
	size_t request, answer; // 0: everything goes back as it comes
	char *buf;              // what is being read, or written
	size_t have;            // bytes of a request in buf
	size_t from, to;        // what of buf is still to be written
};

static int poll_fd;

static void die(const char *what) {
	perror(what);
	exit(1);
}

static void watch(struct peer *p, int operation, unsigned events) {
	struct epoll_event e = {.events = events, .data.ptr = p};
	if (epoll_ctl(poll_fd, operation, p->fd, &e) < 0)
		die("epoll_ctl");
}

static struct peer *new_peer(int fd, int listens, size_t request, size_t answer) {
	struct peer *p = calloc(1, sizeof *p);
	if (!p || !(p->buf = calloc(1, answer ? answer : READ_SIZE)))
		die("calloc");
	p->fd = fd;
	p->listens = listens;
	p->request = request;
	p->answer = answer;
	watch(p, EPOLL_CTL_ADD, EPOLLIN);
	return p;
}

static void drop(struct peer *p) {
	close(p->fd); // which takes it out of epoll, too
	free(p->buf);
	free(p);
}

static void listen_on(const char *argument) {
	size_t request, answer;
	int path_at = 0;
	if (sscanf(argument, "%zu,%zu,%n", &request, &answer, &path_at) < 2 || path_at == 0 || answer < request) {
		fprintf(stderr, "%s is not REQUEST-SIZE,ANSWER-SIZE,PATH\n", argument);
		exit(1);
	}
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const char *path = argument + path_at;
	if (strlen(path) >= sizeof address.sun_path) {
		fprintf(stderr, "%s is too long\n", path);
		exit(1);
	}
	strcpy(address.sun_path, path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, SOMAXCONN) < 0)
		die(path);
	new_peer(fd, 1, request, answer);
}

static void accept_one(struct peer *listener) {
	int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd >= 0)
		new_peer(fd, 0, listener->request, listener->answer);
	else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
		die("accept");
}

// flush writes what is due. It returns -1 if the connection is of no use any
// more, 0 if the socket's buffer is full, 1 if all is written.
static int flush(struct peer *p) {
	while (p->from < p->to) {
		ssize_t n = send(p->fd, p->buf + p->from, p->to - p->from, MSG_NOSIGNAL);
		if (n > 0)
			p->from += n;
		else if (errno == EAGAIN)
			return 0;
		else if (errno != EINTR)
			return -1;
	}
	p->from = p->to = 0;
	return 1;
}

// serve reads once and answers. While an answer waits for room, nothing more is
// read from that connection.
static void serve(struct peer *p, unsigned events) {
	int was_full = p->from < p->to;
	if (!was_full) {
		size_t room = p->request ? p->request - p->have : READ_SIZE;
		ssize_t n = read(p->fd, p->buf + p->have, room);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n <= 0) {
			drop(p);
			return;
		}
		if (p->request && (p->have += n) < p->request)
			return;
		p->have = 0;
		p->to = p->request ? p->answer : (size_t)n;
	} else if (events & (EPOLLHUP | EPOLLERR)) {
		drop(p);
		return;
	}
	int done = flush(p);
	if (done < 0)
		drop(p);
	else if (was_full != !done)
		watch(p, EPOLL_CTL_MOD, done ? EPOLLIN : EPOLLOUT);
}

int main(int count, char **arguments) {
	poll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (poll_fd < 0)
		die("epoll_create1");
	if (count < 2) {
		fprintf(stderr, "needs a socket\n");
		return 1;
	}
	for (int i = 1; i < count; i++)
		listen_on(arguments[i]);
	for (;;) {
		struct epoll_event events[MOST_EVENTS];
		int n = epoll_wait(poll_fd, events, MOST_EVENTS, -1);
		if (n < 0 && errno != EINTR)
			die("epoll_wait");
		for (int i = 0; i < n; i++) {
			struct peer *p = events[i].data.ptr;
			if (p->listens)
				accept_one(p);
			else
				serve(p, events[i].events);
		}
	}
}
