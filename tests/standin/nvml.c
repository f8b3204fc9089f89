/*
 * A stand-in for libnvidia-ml.so.1: the functions that Nodewarden calls, with NVML's ABI, on a state file that a test
 * changes while other processes read it (standin.py is the other side and mirrors `struct state`).
 *
 * It behaves like the board where that matters: range and right are checked, the energy counter integrates power and
 * steps every 100 ms, a limit from out of band lowers the enforced one, each field of GetFieldValues has its own return
 * code, and any function can be slow, fail or hang, for one GPU or, in one-lock mode, for everything at once.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAGIC 0x4e57534cu /* "NWSL" */
#define MAX_GPUS 16
#define NO_DEVICE MAX_GPUS /* the fault and counter slot of functions that concern no device */
#define MAX_LINKS 32
#define MAX_PROCESSES 32
#define MAX_FIELDS 320
#define MAX_FUNCTIONS 128
#define WRITE_RING 4096
#define EVENT_RING 4096
#define MAX_MIG 7

/* standin.py reads this list to know the functions by number. */
#define FUNCTIONS(X) \
    X(nvmlInit_v2) X(nvmlInitWithFlags) X(nvmlShutdown) X(nvmlSystemGetDriverVersion) X(nvmlDeviceGetCount_v2) \
    X(nvmlDeviceGetHandleByIndex_v2) X(nvmlDeviceGetHandleByUUID) X(nvmlDeviceGetHandleByPciBusId_v2) X(nvmlDeviceGetUUID) X(nvmlDeviceGetName) \
    X(nvmlDeviceGetIndex) X(nvmlDeviceGetMinorNumber) X(nvmlDeviceGetPciInfo_v3) X(nvmlDeviceGetSerial) \
    X(nvmlDeviceGetPowerUsage) X(nvmlDeviceGetTotalEnergyConsumption) X(nvmlDeviceGetFieldValues) \
    X(nvmlDeviceGetTemperature) X(nvmlDeviceGetTemperatureV) X(nvmlDeviceGetMarginTemperature) \
    X(nvmlDeviceGetTemperatureThreshold) X(nvmlDeviceGetUtilizationRates) X(nvmlDeviceGetMemoryInfo) \
    X(nvmlDeviceGetMemoryInfo_v2) X(nvmlDeviceGetClockInfo) X(nvmlDeviceGetMaxClockInfo) \
    X(nvmlDeviceGetCurrentClocksEventReasons) X(nvmlDeviceGetCurrentClocksThrottleReasons) \
    X(nvmlDeviceGetPowerManagementLimit) X(nvmlDeviceGetEnforcedPowerLimit) \
    X(nvmlDeviceGetPowerManagementLimitConstraints) X(nvmlDeviceGetPowerManagementDefaultLimit) \
    X(nvmlDeviceSetPowerManagementLimit) X(nvmlDeviceGetNvLinkState) X(nvmlDeviceGetComputeRunningProcesses_v3) \
    X(nvmlDeviceGetPersistenceMode) \
    X(nvmlDeviceGetBAR1MemoryInfo) X(nvmlDeviceGetEncoderUtilization) X(nvmlDeviceGetDecoderUtilization) \
    X(nvmlDeviceGetJpgUtilization) X(nvmlDeviceGetOfaUtilization) X(nvmlDeviceGetPerformanceState) \
    X(nvmlDeviceGetCurrPcieLinkGeneration) X(nvmlDeviceGetMaxPcieLinkGeneration) \
    X(nvmlDeviceGetCurrPcieLinkWidth) X(nvmlDeviceGetMaxPcieLinkWidth) X(nvmlDeviceGetPcieReplayCounter) \
    X(nvmlDeviceGetPcieThroughput) X(nvmlDeviceGetMigMode) X(nvmlDeviceGetTotalEccErrors) \
    X(nvmlDeviceGetMemoryErrorCounter) X(nvmlDeviceGetSramEccErrorStatus) X(nvmlDeviceGetRemappedRows) \
    X(nvmlDeviceGetRowRemapperHistogram) X(nvmlDeviceGetVbiosVersion) X(nvmlDeviceGetBoardPartNumber) \
    X(nvmlDeviceGetCudaComputeCapability) X(nvmlDeviceGetNvLinkErrorCounter) \
    X(nvmlDeviceGetNvLinkRemoteDeviceType) X(nvmlDeviceGetNvLinkRemotePciInfo_v2) X(nvmlDeviceGetGpuFabricInfo) \
    X(nvmlDeviceGetGpuFabricInfoV) X(nvmlGpmQueryDeviceSupport) X(nvmlGpmSampleAlloc) X(nvmlGpmSampleFree) \
    X(nvmlGpmSampleGet) X(nvmlGpmMetricsGet) \
    X(nvmlEventSetCreate) X(nvmlEventSetFree) X(nvmlEventSetWait_v2) X(nvmlDeviceRegisterEvents) \
    X(nvmlDeviceGetSupportedEventTypes) \
    X(nvmlDeviceGetMaxMigDeviceCount) X(nvmlDeviceGetMigDeviceHandleByIndex) X(nvmlDeviceGetGpuInstanceId) \
    X(nvmlDeviceGetComputeInstanceId)

#define AS_ENUM(name) FN_##name,
enum { FUNCTIONS(AS_ENUM) FUNCTION_COUNT };
_Static_assert(FUNCTION_COUNT <= MAX_FUNCTIONS, "the fault table is too small");

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    LIB_RM_VERSION_MISMATCH = 18,
    VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

enum { FEATURE_TLIMIT = 1, FEATURE_THRESHOLDS = 2, FEATURE_AVERAGE_POWER = 4 };
enum { RIGHT_ALLOWED = 0, RIGHT_DENIED = 1, RIGHT_BY_CAPABILITY = 2 };
enum { HANG_NONE = 0, HANG_SLEEP = 1, HANG_STAT = 2 };

/* What quantities.c answers with. */
struct more {
    char vbios[32], part_number[80];
    uint8_t cluster[16];
    uint32_t compute_capability, pstate, sram_threshold, nvswitch_links, module_power_mw;
    uint32_t engine_pct[4]; /* encoder, decoder, JPEG, OFA */
    uint32_t pcie_generation[2], pcie_width[2], pcie_replays, pcie_bytes_type;
    uint32_t ecc_mode[2], mig_mode[2], remapped[4], banks[5], retired[3];
    uint32_t fabric[5], fabric_version; /* state, status, clique, health mask, health summary */
    uint32_t link_remote_type[MAX_LINKS], link_remote_bus[MAX_LINKS], link_error_code[MAX_LINKS];
    uint32_t override_type[MAX_FIELDS], dirty; /* type + 1 of a field that answers override_bits instead */
    uint64_t override_bits[MAX_FIELDS];
    uint64_t pcie_bytes[2], bar1_total, bar1_used;
    uint64_t dram[4], sram[11]; /* volatile, aggregate: corrected, uncorrected; as in the SRAM status */
    uint64_t link_error[5][MAX_LINKS], link_raw_tx_kib[MAX_LINKS], link_raw_rx_kib[MAX_LINKS];
    double gpm[18]; /* percent of metrics 1 to 13, then MiB/s of 20, 21, 60, 61 */
};

struct gpu {
    char uuid[96], name[96], serial[32], bus_id[32];
    uint32_t minor, domain, bus, pci_device_id, pci_subsystem_id, features;
    int32_t lost; /* the code that every call on this GPU answers; 0 = present */
    int32_t junction_c, hbm_c, margin_c, margin_is_set, max_op_c, hbm_max_op_c;
    int32_t threshold_c[4]; /* shutdown, slowdown, memory max, GPU max */
    int32_t tlimit_c[4];    /* the same as signed offsets */
    uint32_t power_mw, instant_power_mw, hbm_power_mw, obeys_cap;
    uint32_t limit_mw, min_mw, max_mw, default_mw, oob_limit_mw, ignores_set;
    uint32_t utilisation_pct, memory_utilisation_pct;
    uint32_t clock_mhz[4], max_clock_mhz[4]; /* graphics, SM, memory, video */
    uint32_t persistence, recovery_action, link_count, link_mbps;
    uint32_t process_count, pid[MAX_PROCESSES];
    uint32_t link_active[MAX_LINKS];
    uint32_t field_error[MAX_FIELDS];
    uint64_t process_bytes[MAX_PROCESSES];
    uint64_t link_tx_kib[MAX_LINKS], link_rx_kib[MAX_LINKS];
    uint64_t memory_total, memory_reserved, memory_used;
    uint64_t event_reasons;
    uint64_t slow_ns[5]; /* fields 74, 76, 269, 270, 271 */
    double energy_mj;
    int64_t energy_at_ns;
    uint64_t energy_shown_mj;
    struct more more;
};

struct fault {
    uint64_t latency_us;
    int32_t error, hang, times, unused; /* times: how often the error is given; 0 = always */
};

struct write {
    int64_t at_ns; /* CLOCK_BOOTTIME */
    int32_t slot, value_mw, result, pid;
};

struct event {
    uint64_t type, data;
    uint32_t slot, unused;
};

struct mig_instance {
    char uuid[96], profile[32];
    uint32_t present, gpu_instance, compute_instance, unused;
    uint64_t memory_total, memory_reserved, memory_used;
};

struct state {
    uint32_t magic, bytes;
    int32_t init_error;
    uint32_t device_count, one_lock, right;
    uint64_t energy_step_ns;
    uint32_t order[MAX_GPUS]; /* index -> slot */
    char driver_version[80];
    char hang_path[256];
    struct gpu gpus[MAX_GPUS];
    struct fault faults[MAX_FUNCTIONS][MAX_GPUS + 1];
    uint64_t calls[MAX_FUNCTIONS][MAX_GPUS + 1];
    uint64_t write_count;
    struct write writes[WRITE_RING];
    int64_t gpm_samples; /* allocated and not freed */
    uint64_t supported_events[MAX_GPUS];
    uint64_t event_count;
    struct event events[EVENT_RING];
    struct mig_instance mig[MAX_GPUS][MAX_MIG];
};

static struct state *state;
static int state_fd = -1;
static int references;
static pthread_mutex_t setup_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t api_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t change_mutex = PTHREAD_MUTEX_INITIALIZER;

static int64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void nap_us(uint64_t us) {
    struct timespec rest = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    while (nanosleep(&rest, &rest) != 0 && errno == EINTR) {}
}

/* Byte 0 of the state file guards changes of power, limits and energy; byte 1 is the driver's one API lock. The lock of
 * an open file ends with its process, as the kernel's own does, and holds across PID namespaces. */
static void file_lock(int byte, short type) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    while (fcntl(state_fd, F_OFD_SETLKW, &lock) != 0 && errno == EINTR) {}
}

static void change_begin(void) {
    pthread_mutex_lock(&change_mutex);
    file_lock(0, F_WRLCK);
}

static void change_end(void) {
    file_lock(0, F_UNLCK);
    pthread_mutex_unlock(&change_mutex);
}

/* Calls ---------------------------------------------------------------------------------------------------------- */

struct call {
    int locked;
};

static int begin(struct call *call, int fn, int slot) {
    call->locked = 0;
    if (state == NULL || (__atomic_load_n(&references, __ATOMIC_SEQ_CST) == 0 && fn > FN_nvmlInitWithFlags))
        return UNINITIALIZED;
    __atomic_fetch_add(&state->calls[fn][slot], 1, __ATOMIC_SEQ_CST);
    if (state->one_lock) {
        pthread_mutex_lock(&api_mutex);
        file_lock(1, F_WRLCK);
        call->locked = 1;
    }
    volatile struct fault *fault = &state->faults[fn][slot];
    for (int64_t began = now_ns(CLOCK_MONOTONIC); fault->latency_us;) {
        int64_t left_us = (int64_t)fault->latency_us - (now_ns(CLOCK_MONOTONIC) - began) / 1000;
        if (left_us <= 0) break;
        nap_us(left_us < 20000 ? (uint64_t)left_us : 20000); /* in short naps: clearing the fault ends it */
    }
    while (fault->hang == HANG_SLEEP) nap_us(20000);
    if (fault->hang == HANG_STAT) {
        struct stat ignored;
        stat(state->hang_path, &ignored);
    }
    int error = fault->error;
    if (error != OK && fault->times > 0 && __atomic_sub_fetch(&fault->times, 1, __ATOMIC_SEQ_CST) == 0)
        fault->error = OK;
    if (error != OK) return error;
    return slot < MAX_GPUS ? state->gpus[slot].lost : OK;
}

static int end(struct call *call, int result) {
    if (call->locked) {
        file_lock(1, F_UNLCK);
        pthread_mutex_unlock(&api_mutex);
    }
    return result;
}

static int slot_of(void *device) {
    uintptr_t handle = (uintptr_t)device;
    return handle >= 1 && handle <= MAX_GPUS ? (int)handle - 1 : -1;
}

static int index_of(int slot) {
    for (uint32_t i = 0; i < state->device_count; i++)
        if (state->order[i] == (uint32_t)slot) return (int)i;
    return -1;
}

/* Opens a function on one device: `gpu` and `result` are in scope in the body, which assigns to `result`. */
#define ON_DEVICE(name, device, ...)                         \
    do {                                                     \
        int slot = slot_of(device);                          \
        if (slot < 0) return INVALID_ARGUMENT;               \
        struct call call;                                    \
        int result = begin(&call, FN_##name, slot);          \
        if (result == OK && index_of(slot) < 0) result = GPU_IS_LOST; \
        if (result == OK) {                                  \
            struct gpu *gpu = &state->gpus[slot];            \
            (void)gpu;                                       \
            __VA_ARGS__                                      \
        }                                                    \
        return end(&call, result);                           \
    } while (0)

static int copy_text(char *to, unsigned int room, const char *from) {
    if (to == NULL) return INVALID_ARGUMENT;
    if (strlen(from) + 1 > room) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return OK;
}

/* Power and energy ------------------------------------------------------------------------------------------------ */

static uint32_t enforced_mw(const struct gpu *gpu) {
    return gpu->oob_limit_mw && gpu->oob_limit_mw < gpu->limit_mw ? gpu->oob_limit_mw : gpu->limit_mw;
}

static uint32_t capped_mw(const struct gpu *gpu, uint32_t wanted_mw) {
    uint32_t limit = enforced_mw(gpu);
    return gpu->obeys_cap && wanted_mw > limit ? limit : wanted_mw;
}

/* Brings the energy counter to now; what readers see moves only at whole steps. Call between change_begin and _end. */
static void settle_energy(struct gpu *gpu) {
    int64_t now = now_ns(CLOCK_MONOTONIC);
    int64_t step = state->energy_step_ns ? (int64_t)state->energy_step_ns : 1;
    int64_t edge = now - now % step;
    double mj_per_ns = capped_mw(gpu, gpu->power_mw) / 1e9;
    if (edge > gpu->energy_at_ns)
        gpu->energy_shown_mj = (uint64_t)(gpu->energy_mj + mj_per_ns * (double)(edge - gpu->energy_at_ns));
    gpu->energy_mj += mj_per_ns * (double)(now - gpu->energy_at_ns);
    gpu->energy_at_ns = now;
}

static uint64_t energy_mj(struct gpu *gpu) {
    change_begin();
    settle_energy(gpu);
    uint64_t shown = gpu->energy_shown_mj;
    change_end();
    return shown;
}

static int may_write(void) {
    if (state->right == RIGHT_ALLOWED) return 1;
    if (state->right == RIGHT_DENIED) return 0;
    /* As the driver asks: CAP_SYS_ADMIN of the calling thread, never uid 0. */
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};
    if (syscall(SYS_capget, &header, data) != 0) return 0;
    return (data[CAP_TO_INDEX(CAP_SYS_ADMIN)].effective & CAP_TO_MASK(CAP_SYS_ADMIN)) != 0;
}

static void record_write(int slot, uint32_t value_mw, int result) {
    uint64_t n = __atomic_fetch_add(&state->write_count, 1, __ATOMIC_SEQ_CST);
    struct write *entry = &state->writes[n % WRITE_RING];
    entry->slot = slot;
    entry->value_mw = (int32_t)value_mw;
    entry->result = result;
    entry->pid = (int32_t)getpid();
    __atomic_store_n(&entry->at_ns, now_ns(CLOCK_BOOTTIME), __ATOMIC_SEQ_CST); /* last: non-zero = complete */
}

/* Library and devices --------------------------------------------------------------------------------------------- */

static int open_state(void) {
    if (state != NULL) return OK;
    const char *path = getenv("NODEWARDEN_STANDIN_STATE");
    if (path == NULL) return DRIVER_NOT_LOADED;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return DRIVER_NOT_LOADED;
    struct stat info;
    void *map = MAP_FAILED;
    if (fstat(fd, &info) == 0 && info.st_size >= (off_t)sizeof(struct state))
        map = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED || ((struct state *)map)->magic != MAGIC ||
        ((struct state *)map)->bytes != sizeof(struct state)) {
        fprintf(stderr, "stand-in: %s is not a state of %zu bytes\n", path, sizeof(struct state));
        if (map != MAP_FAILED) munmap(map, sizeof(struct state));
        close(fd);
        return UNKNOWN;
    }
    state_fd = fd;
    state = map;
    return OK;
}

/* Whoever loads the library over and over must not be left with what it opened. */
static __attribute__((destructor)) void unloaded(void) {
    if (state != NULL) munmap(state, sizeof(struct state));
    if (state_fd >= 0) close(state_fd);
}

#include "files.c"

static int init(int fn) {
    pthread_mutex_lock(&setup_mutex);
    int result = open_state();
    pthread_mutex_unlock(&setup_mutex);
    if (result != OK) return result;
    struct call call;
    result = begin(&call, fn, NO_DEVICE);
    if (result == OK) result = state->init_error;
    if (result == OK && !versions_match()) result = LIB_RM_VERSION_MISMATCH;
    if (result == OK) {
        hold_control();
        __atomic_fetch_add(&references, 1, __ATOMIC_SEQ_CST);
    }
    return end(&call, result);
}

EXPORT int nvmlInit_v2(void) { return init(FN_nvmlInit_v2); }

EXPORT int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    return init(FN_nvmlInitWithFlags);
}

EXPORT int nvmlShutdown(void) {
    struct call call;
    int result = begin(&call, FN_nvmlShutdown, NO_DEVICE);
    if (result == OK && __atomic_sub_fetch(&references, 1, __ATOMIC_SEQ_CST) == 0) let_all_go();
    return end(&call, result);
}

EXPORT const char *nvmlErrorString(int code) {
    switch (code) {
        case OK: return "Success";
        case UNINITIALIZED: return "Uninitialized";
        case INVALID_ARGUMENT: return "Invalid Argument";
        case NOT_SUPPORTED: return "Not Supported";
        case NO_PERMISSION: return "Insufficient Permissions";
        case NOT_FOUND: return "Not Found";
        case INSUFFICIENT_SIZE: return "Insufficient Size";
        case DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case 10: return "Timeout";
        case GPU_IS_LOST: return "GPU is lost";
        case 16: return "GPU requires reset";
        case 18: return "Driver/library version mismatch";
        case VERSION_MISMATCH: return "Argument version mismatch";
        case 26: return "Requested functionality has been deprecated";
        default: return "Unknown Error";
    }
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    struct call call;
    int result = begin(&call, FN_nvmlSystemGetDriverVersion, NO_DEVICE);
    if (result == OK) result = copy_text(version, length, state->driver_version);
    return end(&call, result);
}

EXPORT int nvmlDeviceGetCount_v2(unsigned int *count) {
    struct call call;
    int result = begin(&call, FN_nvmlDeviceGetCount_v2, NO_DEVICE);
    if (result == OK) *count = state->device_count;
    return end(&call, result);
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    if (state == NULL) return UNINITIALIZED;
    int known = index < state->device_count;
    int slot = known ? (int)state->order[index] : NO_DEVICE;
    struct call call;
    int result = begin(&call, FN_nvmlDeviceGetHandleByIndex_v2, slot);
    if (result == OK && !known) result = INVALID_ARGUMENT;
    if (known && result != UNINITIALIZED) hold_board(slot);
    if (result == OK) *device = (void *)(uintptr_t)(slot + 1);
    return end(&call, result);
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device) {
    if (state == NULL) return UNINITIALIZED;
    unsigned int domain, bus;
    int slot = NO_DEVICE;
    if (sscanf(bus_id, "%x:%x:", &domain, &bus) == 2)
        for (uint32_t i = 0; i < state->device_count; i++) {
            const struct gpu *gpu = &state->gpus[state->order[i]];
            if (gpu->domain == domain && gpu->bus == bus) slot = (int)state->order[i];
        }
    struct call call;
    int result = begin(&call, FN_nvmlDeviceGetHandleByPciBusId_v2, slot);
    if (result == OK && slot == NO_DEVICE) result = NOT_FOUND;
    if (slot != NO_DEVICE && result != UNINITIALIZED) hold_board(slot);
    if (result == OK) *device = (void *)(uintptr_t)(slot + 1);
    return end(&call, result);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    if (state == NULL) return UNINITIALIZED;
    int slot = NO_DEVICE;
    for (uint32_t i = 0; i < state->device_count; i++)
        if (strcmp(state->gpus[state->order[i]].uuid, uuid) == 0) slot = (int)state->order[i];
    struct call call;
    int result = begin(&call, FN_nvmlDeviceGetHandleByUUID, slot);
    if (result == OK && slot == NO_DEVICE) result = NOT_FOUND;
    for (uint32_t i = 0; result != UNINITIALIZED && i < state->device_count; i++) {
        hold_board((int)state->order[i]); /* it looks at one board after another */
        if ((int)state->order[i] == slot) break;
    }
    if (result == OK) *device = (void *)(uintptr_t)(slot + 1);
    return end(&call, result);
}

#include "mig.c"

EXPORT int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length) {
    ON_MIG(nvmlDeviceGetUUID, device, { result = copy_text(uuid, length, mig->uuid); });
    ON_DEVICE(nvmlDeviceGetUUID, device, { result = copy_text(uuid, length, gpu->uuid); });
}

EXPORT int nvmlDeviceGetName(void *device, char *name, unsigned int length) {
    ON_MIG(nvmlDeviceGetName, device, {
        char text[160];
        snprintf(text, sizeof text, "%s MIG %s", state->gpus[slot].name, mig->profile);
        result = copy_text(name, length, text);
    });
    ON_DEVICE(nvmlDeviceGetName, device, { result = copy_text(name, length, gpu->name); });
}

EXPORT int nvmlDeviceGetSerial(void *device, char *serial, unsigned int length) {
    ON_DEVICE(nvmlDeviceGetSerial, device, { result = copy_text(serial, length, gpu->serial); });
}

EXPORT int nvmlDeviceGetIndex(void *device, unsigned int *index) {
    ON_DEVICE(nvmlDeviceGetIndex, device, { *index = (unsigned int)index_of(slot); });
}

EXPORT int nvmlDeviceGetMinorNumber(void *device, unsigned int *minor) {
    ON_DEVICE(nvmlDeviceGetMinorNumber, device, { *minor = gpu->minor; });
}

struct pci_info {
    char legacy_bus_id[16];
    unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

EXPORT int nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *info) {
    ON_DEVICE(nvmlDeviceGetPciInfo_v3, device, {
        memset(info, 0, sizeof *info);
        snprintf(info->legacy_bus_id, sizeof info->legacy_bus_id, "%04X:%02X:00.0", gpu->domain & 0xffff, gpu->bus & 0xff);
        info->domain = gpu->domain;
        info->bus = gpu->bus;
        info->pci_device_id = gpu->pci_device_id;
        info->pci_subsystem_id = gpu->pci_subsystem_id;
        memcpy(info->bus_id, gpu->bus_id, sizeof info->bus_id);
    });
}

EXPORT int nvmlDeviceGetPersistenceMode(void *device, unsigned int *mode) {
    ON_DEVICE(nvmlDeviceGetPersistenceMode, device, { *mode = gpu->persistence; });
}

/* Readings -------------------------------------------------------------------------------------------------------- */

EXPORT int nvmlDeviceGetPowerUsage(void *device, unsigned int *mw) {
    ON_DEVICE(nvmlDeviceGetPowerUsage, device, { *mw = capped_mw(gpu, gpu->power_mw); });
}

EXPORT int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) {
    ON_DEVICE(nvmlDeviceGetTotalEnergyConsumption, device, { *mj = energy_mj(gpu); });
}

EXPORT int nvmlDeviceGetTemperature(void *device, unsigned int sensor, unsigned int *celsius) {
    ON_DEVICE(nvmlDeviceGetTemperature, device, {
        if (sensor != 0) result = INVALID_ARGUMENT;
        else *celsius = (unsigned int)gpu->junction_c;
    });
}

struct temperature_v1 {
    unsigned int version, sensor;
    int celsius;
};

#define STRUCT_VERSION(type, n) ((unsigned int)(sizeof(type) | (n) << 24))

EXPORT int nvmlDeviceGetTemperatureV(void *device, struct temperature_v1 *reading) {
    ON_DEVICE(nvmlDeviceGetTemperatureV, device, {
        if (reading->version != STRUCT_VERSION(struct temperature_v1, 1)) result = VERSION_MISMATCH;
        else if (reading->sensor != 0) result = INVALID_ARGUMENT;
        else reading->celsius = gpu->junction_c;
    });
}

static int margin_c(const struct gpu *gpu) {
    if (gpu->margin_is_set) return gpu->margin_c;
    int junction = gpu->max_op_c - gpu->junction_c, hbm = gpu->hbm_max_op_c - gpu->hbm_c;
    return junction < hbm ? junction : hbm;
}

struct margin_v1 {
    unsigned int version;
    int celsius;
};

EXPORT int nvmlDeviceGetMarginTemperature(void *device, struct margin_v1 *margin) {
    ON_DEVICE(nvmlDeviceGetMarginTemperature, device, {
        if (margin->version != STRUCT_VERSION(struct margin_v1, 1)) result = VERSION_MISMATCH;
        else if (!(gpu->features & FEATURE_TLIMIT)) result = NOT_SUPPORTED;
        else margin->celsius = margin_c(gpu);
    });
}

EXPORT int nvmlDeviceGetTemperatureThreshold(void *device, unsigned int kind, unsigned int *celsius) {
    ON_DEVICE(nvmlDeviceGetTemperatureThreshold, device, {
        if (!(gpu->features & FEATURE_THRESHOLDS) || kind > 3) result = NOT_SUPPORTED;
        else *celsius = (unsigned int)gpu->threshold_c[kind];
    });
}

struct utilisation {
    unsigned int gpu_pct, memory_pct;
};

EXPORT int nvmlDeviceGetUtilizationRates(void *device, struct utilisation *rates) {
    ON_DEVICE(nvmlDeviceGetUtilizationRates, device, {
        if (gpu->more.mig_mode[0]) result = NOT_SUPPORTED;
        rates->gpu_pct = gpu->utilisation_pct;
        rates->memory_pct = gpu->memory_utilisation_pct;
    });
}

struct memory_v1 {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};

EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory_v1 *memory) {
    ON_DEVICE(nvmlDeviceGetMemoryInfo, device, { /* the first version counts reserved as used */
        memory->total = gpu->memory_total;
        memory->used = gpu->memory_used + gpu->memory_reserved;
        memory->free = memory->total - memory->used;
    });
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory) {
    ON_MIG(nvmlDeviceGetMemoryInfo_v2, device, {
        memory->total = mig->memory_total;
        memory->reserved = mig->memory_reserved;
        memory->used = mig->memory_used;
        memory->free = memory->total - memory->reserved - memory->used;
    });
    ON_DEVICE(nvmlDeviceGetMemoryInfo_v2, device, {
        if (memory->version != STRUCT_VERSION(struct memory_v2, 2)) result = VERSION_MISMATCH;
        else {
            memory->total = gpu->memory_total;
            memory->reserved = gpu->memory_reserved;
            memory->used = gpu->memory_used;
            memory->free = memory->total - memory->reserved - memory->used;
        }
    });
}

EXPORT int nvmlDeviceGetClockInfo(void *device, unsigned int kind, unsigned int *mhz) {
    ON_DEVICE(nvmlDeviceGetClockInfo, device, {
        if (kind > 3) result = INVALID_ARGUMENT;
        else *mhz = gpu->clock_mhz[kind];
    });
}

EXPORT int nvmlDeviceGetMaxClockInfo(void *device, unsigned int kind, unsigned int *mhz) {
    ON_DEVICE(nvmlDeviceGetMaxClockInfo, device, {
        if (kind > 3) result = INVALID_ARGUMENT;
        else *mhz = gpu->max_clock_mhz[kind];
    });
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *bits) {
    ON_DEVICE(nvmlDeviceGetCurrentClocksEventReasons, device, { *bits = gpu->event_reasons; });
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits) {
    ON_DEVICE(nvmlDeviceGetCurrentClocksThrottleReasons, device, { *bits = gpu->event_reasons; });
}

EXPORT int nvmlDeviceGetNvLinkState(void *device, unsigned int link, unsigned int *active) {
    ON_DEVICE(nvmlDeviceGetNvLinkState, device, {
        if (gpu->link_count == 0) result = NOT_SUPPORTED;
        else if (link >= gpu->link_count) result = INVALID_ARGUMENT;
        else *active = gpu->link_active[link];
    });
}

struct process_info {
    unsigned int pid;
    unsigned long long bytes;
    unsigned int gpu_instance, compute_instance;
};

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, struct process_info *infos) {
    ON_DEVICE(nvmlDeviceGetComputeRunningProcesses_v3, device, {
        unsigned int room = *count;
        *count = gpu->process_count;
        if (gpu->process_count > room || (gpu->process_count && infos == NULL)) result = INSUFFICIENT_SIZE;
        else
            for (unsigned int i = 0; i < gpu->process_count; i++)
                infos[i] = (struct process_info){gpu->pid[i], gpu->process_bytes[i], 0xffffffffu, 0xffffffffu};
    });
}

/* Limits ---------------------------------------------------------------------------------------------------------- */

EXPORT int nvmlDeviceGetPowerManagementLimit(void *device, unsigned int *mw) {
    ON_DEVICE(nvmlDeviceGetPowerManagementLimit, device, { *mw = gpu->limit_mw; });
}

EXPORT int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned int *mw) {
    ON_DEVICE(nvmlDeviceGetEnforcedPowerLimit, device, { *mw = enforced_mw(gpu); });
}

EXPORT int nvmlDeviceGetPowerManagementLimitConstraints(void *device, unsigned int *min_mw, unsigned int *max_mw) {
    ON_DEVICE(nvmlDeviceGetPowerManagementLimitConstraints, device, {
        *min_mw = gpu->min_mw;
        *max_mw = gpu->max_mw;
    });
}

EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(void *device, unsigned int *mw) {
    ON_DEVICE(nvmlDeviceGetPowerManagementDefaultLimit, device, { *mw = gpu->default_mw; });
}

static int set_limit(struct gpu *gpu, unsigned int mw) {
    if (!may_write()) return NO_PERMISSION;
    if (mw < gpu->min_mw || mw > gpu->max_mw) return INVALID_ARGUMENT;
    if (gpu->ignores_set) return OK;
    change_begin();
    settle_energy(gpu);
    gpu->limit_mw = mw;
    change_end();
    return OK;
}

EXPORT int nvmlDeviceSetPowerManagementLimit(void *device, unsigned int mw) {
    int slot = slot_of(device);
    if (slot < 0) return INVALID_ARGUMENT;
    struct call call;
    int result = begin(&call, FN_nvmlDeviceSetPowerManagementLimit, slot);
    if (result == UNINITIALIZED && state == NULL) return result;
    if (result == OK && index_of(slot) < 0) result = GPU_IS_LOST;
    if (result == OK) result = set_limit(&state->gpus[slot], mw);
    record_write(slot, mw, result);
    return end(&call, result);
}

/* Fields ---------------------------------------------------------------------------------------------------------- */

enum { TYPE_UINT = 1, TYPE_ULONGLONG = 3, TYPE_INT = 5 };
#define ALL_LINKS 0xffffffffu

struct field {
    uint32_t id, scope;
    int64_t timestamp_us, latency_us;
    int32_t type, result;
    union {
        double as_double;
        uint32_t as_uint;
        uint64_t as_ulonglong;
        int32_t as_int;
    } value;
};

static int as_uint(struct field *field, uint32_t value) {
    field->type = TYPE_UINT;
    field->value.as_uint = value;
    return OK;
}

static int as_ulonglong(struct field *field, uint64_t value) {
    field->type = TYPE_ULONGLONG;
    field->value.as_ulonglong = value;
    return OK;
}

static int link_bytes(struct gpu *gpu, struct field *field, const uint64_t *kib) {
    if (gpu->link_count == 0) return NOT_SUPPORTED;
    if (field->scope < gpu->link_count && gpu->more.link_error_code[field->scope])
        return (int)gpu->more.link_error_code[field->scope];
    if (field->scope != ALL_LINKS)
        return field->scope < gpu->link_count ? as_ulonglong(field, kib[field->scope]) : INVALID_ARGUMENT;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < gpu->link_count; i++) sum += kib[i];
    return as_ulonglong(field, sum);
}

static int average_power(struct gpu *gpu, struct field *field) {
    if (!(gpu->features & FEATURE_AVERAGE_POWER)) return NOT_SUPPORTED;
    switch (field->scope) {
        case 0: return as_uint(field, capped_mw(gpu, gpu->power_mw));
        case 2: return as_uint(field, gpu->hbm_power_mw);
        case 1: return gpu->more.module_power_mw ? as_uint(field, gpu->more.module_power_mw) : NOT_SUPPORTED;
        default: return NOT_SUPPORTED;
    }
}

#include "quantities.c"

static int fill(struct gpu *gpu, struct field *field) {
    if (field->id < MAX_FIELDS && gpu->field_error[field->id]) return (int)gpu->field_error[field->id];
    if (field->id < MAX_FIELDS && gpu->more.override_type[field->id])
        return as_type(field, (int)gpu->more.override_type[field->id] - 1, gpu->more.override_bits[field->id]);
    switch (field->id) {
        case 82: return as_uint(field, (uint32_t)gpu->hbm_c);
        case 83: case 191: return as_ulonglong(field, energy_mj(gpu));
        case 74: return as_ulonglong(field, gpu->slow_ns[0]);
        case 76: return as_ulonglong(field, gpu->slow_ns[1]);
        case 269: case 270: case 271: return as_ulonglong(field, gpu->slow_ns[field->id - 269 + 2]);
        case 91: return as_uint(field, gpu->link_count);
        case 138: return link_bytes(gpu, field, gpu->link_tx_kib);
        case 139: return link_bytes(gpu, field, gpu->link_rx_kib);
        case 164:
            if (gpu->link_count == 0) return NOT_SUPPORTED;
            return field->scope < gpu->link_count ? as_uint(field, gpu->link_mbps) : INVALID_ARGUMENT;
        case 185: return average_power(gpu, field);
        case 186:
            return as_uint(field, capped_mw(gpu, gpu->instant_power_mw ? gpu->instant_power_mw : gpu->power_mw));
        case 187: return as_uint(field, gpu->min_mw);
        case 188: return as_uint(field, gpu->max_mw);
        case 189: return as_uint(field, gpu->default_mw);
        case 190: return as_uint(field, enforced_mw(gpu));
        case 192: return as_uint(field, gpu->limit_mw);
        case 193: case 194: case 195: case 196:
            if (!(gpu->features & FEATURE_TLIMIT)) return NOT_SUPPORTED;
            field->type = TYPE_INT;
            field->value.as_int = gpu->tlimit_c[field->id - 193];
            return OK;
        case 230:
            if (!(gpu->features & FEATURE_RECOVERY_ACTION)) return NOT_SUPPORTED;
            return as_uint(field, gpu->recovery_action);
        default: return fill_more(gpu, field);
    }
}

EXPORT int nvmlDeviceGetFieldValues(void *device, int count, struct field *fields) {
    ON_DEVICE(nvmlDeviceGetFieldValues, device, {
        for (int i = 0; i < count; i++) {
            memset(&fields[i].value, gpu->more.dirty ? 0xa5 : 0, sizeof fields[i].value);
            fields[i].timestamp_us = now_ns(CLOCK_REALTIME) / 1000;
            fields[i].latency_us = 0;
            fields[i].result = fill(gpu, &fields[i]);
        }
    });
}

#include "events.c"
