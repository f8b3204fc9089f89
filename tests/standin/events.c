/*
 * Events: sets, registration, the wait. An event is seen by every set in which its GPU was registered before; the wait
 * gives one event a call and does not take the driver's lock while it sleeps. Included by nvml.c.
 */

enum { TIMEOUT = 10 };

struct event_set {
    uint64_t mask[MAX_GPUS], next;
};

struct event_data {
    void *device;
    unsigned long long type, data;
    unsigned int gpu_instance, compute_instance;
};

EXPORT int nvmlEventSetCreate(struct event_set **set) {
    struct call call;
    int result = begin(&call, FN_nvmlEventSetCreate, NO_DEVICE);
    if (result == OK) {
        *set = calloc(1, sizeof **set);
        (*set)->next = __atomic_load_n(&state->event_count, __ATOMIC_SEQ_CST);
    }
    return end(&call, result);
}

EXPORT int nvmlEventSetFree(struct event_set *set) {
    struct call call;
    int result = begin(&call, FN_nvmlEventSetFree, NO_DEVICE);
    if (result == OK) free(set);
    return end(&call, result);
}

EXPORT int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *types) {
    ON_DEVICE(nvmlDeviceGetSupportedEventTypes, device, { *types = state->supported_events[slot]; });
}

EXPORT int nvmlDeviceRegisterEvents(void *device, unsigned long long types, struct event_set *set) {
    ON_DEVICE(nvmlDeviceRegisterEvents, device, {
        if (types & ~state->supported_events[slot]) result = NOT_SUPPORTED; /* one refuses them all */
        else set->mask[slot] |= types;
    });
}

static int next_event(struct event_set *set, struct event_data *data) {
    while (set->next < __atomic_load_n(&state->event_count, __ATOMIC_SEQ_CST)) {
        const struct event *event = &state->events[set->next++ % EVENT_RING];
        if (!(set->mask[event->slot] & event->type)) continue;
        *data = (struct event_data){(void *)(uintptr_t)(event->slot + 1), event->type, event->data, ~0u, ~0u};
        return 1;
    }
    return 0;
}

EXPORT int nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, unsigned int timeout_ms) {
    struct call call;
    int result = begin(&call, FN_nvmlEventSetWait_v2, NO_DEVICE);
    end(&call, result);
    if (result != OK) return result;
    for (int64_t until = now_ns(CLOCK_MONOTONIC) + timeout_ms * 1000000LL;;) {
        if (next_event(set, data)) return OK;
        if (now_ns(CLOCK_MONOTONIC) >= until) return TIMEOUT;
        nap_us(100000); /* the real call sleeps in the driver: often waking up would be counted as our cost */
    }
}
