/* MIG instances: handles of their own, made from the board's slot and the instance's place; included by nvml.c. */

#define MIG_SHIFT 16

static struct mig_instance *mig_of(void *device, int *slot) {
    uintptr_t handle = (uintptr_t)device;
    uintptr_t place = handle >> MIG_SHIFT;
    *slot = slot_of((void *)(handle & ((1u << MIG_SHIFT) - 1)));
    if (place < 1 || place > MAX_MIG || *slot < 0) return NULL;
    return &state->mig[*slot][place - 1];
}

/* Opens a function on one instance; a handle of an instance that has gone answers NOT_FOUND. */
#define ON_MIG(name, device, ...)                                     \
    do {                                                              \
        int slot;                                                     \
        struct mig_instance *mig = mig_of(device, &slot);             \
        if (mig != NULL) {                                            \
            struct call call;                                         \
            int result = begin(&call, FN_##name, slot);               \
            if (result == OK && !mig->present) result = NOT_FOUND;    \
            if (result == OK) { __VA_ARGS__ }                         \
            return end(&call, result);                                \
        }                                                             \
    } while (0)

EXPORT int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned int *count) {
    ON_DEVICE(nvmlDeviceGetMaxMigDeviceCount, device, { *count = gpu->more.mig_mode[0] ? MAX_MIG : 0; });
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned int index, void **mig) {
    ON_DEVICE(nvmlDeviceGetMigDeviceHandleByIndex, device, {
        if (index >= MAX_MIG) result = INVALID_ARGUMENT;
        else if (!gpu->more.mig_mode[0] || !state->mig[slot][index].present) result = NOT_FOUND;
        else *mig = (void *)((uintptr_t)device | (uintptr_t)(index + 1) << MIG_SHIFT);
    });
}

EXPORT int nvmlDeviceGetGpuInstanceId(void *device, unsigned int *id) {
    ON_MIG(nvmlDeviceGetGpuInstanceId, device, { *id = mig->gpu_instance; });
    return INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetComputeInstanceId(void *device, unsigned int *id) {
    ON_MIG(nvmlDeviceGetComputeInstanceId, device, { *id = mig->compute_instance; });
    return INVALID_ARGUMENT;
}
