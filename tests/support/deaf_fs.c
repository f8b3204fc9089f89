/*
 * A file system that never answers: mounts FUSE on the given folder, answers the hand-shake, and from then on reads every
 * request and stays silent. Whoever looks up a name in it waits inside the kernel, uninterruptibly once killed, until this
 * program ends; a call that hangs in a GPU driver looks the same from outside.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/uio.h>
#include <unistd.h>

static int answer(int device, unsigned long long unique, int error, const void *body, size_t size) {
    struct fuse_out_header header = {.len = (unsigned)(sizeof header + size), .error = error, .unique = unique};
    struct iovec parts[2] = {{&header, sizeof header}, {(void *)body, size}};
    return writev(device, parts, size ? 2 : 1) < 0 ? -1 : 0;
}

int main(int argc, char **argv) {
    if (argc != 2) return 64;
    int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0) return perror("/dev/fuse"), 1;
    char options[128];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device);
    if (mount("deaf", argv[1], "fuse.deaf", MS_NOSUID | MS_NODEV, options) != 0) return perror("mount"), 1;
    static char request[1 << 18];
    for (;;) {
        ssize_t length = read(device, request, sizeof request);
        if (length < 0 && errno == EINTR) continue;
        if (length < 0) return 0; /* unmounted */
        struct fuse_in_header *header = (struct fuse_in_header *)request;
        if (header->opcode == FUSE_INIT) {
            struct fuse_init_out body;
            memset(&body, 0, sizeof body);
            body.major = FUSE_KERNEL_VERSION;
            body.minor = FUSE_KERNEL_MINOR_VERSION;
            body.max_write = 4096;
            if (answer(device, header->unique, 0, &body, sizeof body) != 0) return perror("init"), 1;
            puts("deaf");
            fflush(stdout);
        } else if (header->opcode == FUSE_INTERRUPT) {
            /* Answered once: the kernel then stops asking and waits as for a disk. */
            if (answer(device, header->unique, -ENOSYS, NULL, 0) != 0) return perror("interrupt"), 1;
        } else {
            fprintf(stderr, "silent about operation %u\n", header->opcode);
        }
    }
}
