/*
 * Device files and versions, as the real library and driver have them: included by nvml.c.
 *
 * Beside the state file lies a folder `dev`. As NVML does, the library opens nvidiactl when it is initialised and a
 * board's nvidia<minor> when a handle for it is asked for, and closes them all only when it is shut down: whoever looks
 * at /proc/PID/fd sees who holds a board. What is not there is not opened.
 *
 * Files `library.version` and `module.version`, where they exist, say which library is installed and which module is
 * loaded. A library knows the version that it had when it was loaded, however long ago, and refuses another module.
 */
static int control_fd = -1;
static int board_fd[MAX_GPUS];
static int files_known;
static char own_version[80];
static pthread_mutex_t files_mutex = PTHREAD_MUTEX_INITIALIZER;

/* "FOLDER/rest", FOLDER being where the state file is. */
static int beside_state(char *to, size_t room, const char *rest) {
    const char *path = getenv("NODEWARDEN_STANDIN_STATE");
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash != NULL && snprintf(to, room, "%.*s/%s", (int)(slash - path), path, rest) < (int)room;
}

static int open_beside(const char *rest) {
    char path[512];
    return beside_state(path, sizeof path, rest) ? open(path, O_RDWR | O_CLOEXEC) : -1;
}

static void read_version(char *to, size_t room, const char *name) {
    int fd = open_beside(name);
    ssize_t length = fd < 0 ? 0 : read(fd, to, room - 1);
    to[length > 0 ? length : 0] = '\0';
    if (fd >= 0) close(fd);
}

static int versions_match(void) {
    char module[80];
    pthread_mutex_lock(&files_mutex);
    if (own_version[0] == '\0') read_version(own_version, sizeof own_version, "library.version");
    read_version(module, sizeof module, "module.version");
    int same = module[0] == '\0' || own_version[0] == '\0' || strcmp(module, own_version) == 0;
    pthread_mutex_unlock(&files_mutex);
    return same;
}

static void hold_control(void) {
    pthread_mutex_lock(&files_mutex);
    if (!files_known) {
        files_known = 1;
        for (int i = 0; i < MAX_GPUS; i++) board_fd[i] = -1;
    }
    if (control_fd < 0) control_fd = open_beside("dev/nvidiactl");
    pthread_mutex_unlock(&files_mutex);
}

static void hold_board(int slot) {
    char name[32];
    snprintf(name, sizeof name, "dev/nvidia%u", state->gpus[slot].minor);
    pthread_mutex_lock(&files_mutex);
    if (board_fd[slot] < 0) board_fd[slot] = open_beside(name);
    pthread_mutex_unlock(&files_mutex);
}

static void let_all_go(void) {
    pthread_mutex_lock(&files_mutex);
    if (control_fd >= 0) close(control_fd);
    control_fd = -1;
    for (int i = 0; files_known && i < MAX_GPUS; i++) {
        if (board_fd[i] >= 0) close(board_fd[i]);
        board_fd[i] = -1;
    }
    pthread_mutex_unlock(&files_mutex);
}
