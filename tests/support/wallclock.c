/* Preloaded into a program under test: its wall clock is off by the seconds in a file that the test rewrites.
   Only CLOCK_REALTIME moves; the monotonic and boot clocks stay, as when an operator or NTP steps the time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static double offset_s(void) {
    const char *path = getenv("NODEWARDEN_TEST_WALL_OFFSET");
    char text[64] = {0};
    if (!path) return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    return got > 0 ? atof(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    long status = syscall(SYS_clock_gettime, clock, out);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += (time_t)offset_s();
    return (int)status;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    long status = syscall(SYS_gettimeofday, out, zone);
    if (status == 0 && out) out->tv_sec += (time_t)offset_s();
    return (int)status;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
