/*
 * The quantities of a board beyond power and heat, included by nvml.c: memory and its errors, row remaps, PCIe, NVLink
 * errors and ends, GPM, the fabric. Which of them a board has says `features`; standin.py mirrors `struct more`.
 */

enum {
    FEATURE_GPM = 8,
    FEATURE_ROW_REMAP = 16,
    FEATURE_FABRIC = 32,
    FEATURE_RETIRED_PAGES = 64,
    FEATURE_LINK_STATE_FIELD = 128,
    FEATURE_PCIE_BYTES = 256,
    FEATURE_SRAM_STATUS = 512,
    FEATURE_RECOVERY_ACTION = 1024,
};

static int as_type(struct field *field, int type, uint64_t bits) {
    field->type = type;
    field->value.as_ulonglong = bits;
    return OK;
}

static int link_field(struct gpu *gpu, struct field *field, int type, const uint64_t *of_links) {
    if (gpu->link_count == 0) return NOT_SUPPORTED;
    if (field->scope >= gpu->link_count) return INVALID_ARGUMENT;
    if (gpu->more.link_error_code[field->scope]) return (int)gpu->more.link_error_code[field->scope];
    return as_type(field, type, of_links[field->scope]);
}

static int sum_of_links(struct gpu *gpu, struct field *field, const uint64_t *of_links) {
    if (gpu->link_count == 0) return NOT_SUPPORTED;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < gpu->link_count; i++) sum += of_links[i];
    return as_type(field, TYPE_ULONGLONG, sum);
}

static int link_raw_kib(struct gpu *gpu, struct field *field, const uint64_t *kib) {
    return field->scope == ALL_LINKS ? sum_of_links(gpu, field, kib) : link_field(gpu, field, TYPE_ULONGLONG, kib);
}

/* Error fields have numbers of their own for links 0 to 5 and 6 to 11, and none for later links. */
static int link_error_field(struct gpu *gpu, struct field *field) {
    static const uint32_t first[] = {46, 53, 32, 39, 148}, seventh[] = {108, 114, 96, 102, 154};
    for (int kind = 0; kind < 5; kind++)
        for (uint32_t link = 0; link < 12; link++)
            if (field->id == (link < 6 ? first[kind] + link : seventh[kind] + link - 6))
                return link < gpu->link_count ? as_type(field, TYPE_ULONGLONG, gpu->more.link_error[kind][link])
                                              : NOT_SUPPORTED;
    return NOT_SUPPORTED;
}

static uint64_t sram_total(const struct more *more, int corrected, int aggregate) {
    const uint64_t *sram = more->sram + (aggregate ? 0 : 3); /* uncorrected parity, secded, corrected */
    return corrected ? sram[2] : sram[0] + sram[1];
}

static uint64_t ecc_total(const struct more *more, int corrected, int aggregate) {
    return more->dram[2 * aggregate + !corrected] + sram_total(more, corrected, aggregate);
}

static int fill_more(struct gpu *gpu, struct field *field) {
    struct more *more = &gpu->more;
    uint32_t has = gpu->features;
    switch (field->id) {
        case 1: case 2: return as_uint(field, more->ecc_mode[field->id - 1]);
        case 3: case 4: case 5: case 6:
            return as_ulonglong(field, ecc_total(more, field->id % 2, field->id >= 5));
        case 11: case 12: return as_ulonglong(field, more->dram[field->id - 11]);
        case 22: case 23: return as_ulonglong(field, more->dram[field->id - 20]);
        case 29: case 30: case 31:
            return has & FEATURE_RETIRED_PAGES ? as_uint(field, more->retired[field->id - 29]) : NOT_SUPPORTED;
        case 38: return sum_of_links(gpu, field, more->link_error[2]);
        case 45: return sum_of_links(gpu, field, more->link_error[3]);
        case 52: return sum_of_links(gpu, field, more->link_error[0]);
        case 59: return sum_of_links(gpu, field, more->link_error[1]);
        case 160: return sum_of_links(gpu, field, more->link_error[4]);
        case 90: return gpu->link_count ? as_uint(field, gpu->link_mbps) : NOT_SUPPORTED;
        case 94: return as_uint(field, more->pcie_replays);
        case 140: return link_raw_kib(gpu, field, more->link_raw_tx_kib);
        case 141: return link_raw_kib(gpu, field, more->link_raw_rx_kib);
        case 142: case 143: case 144: case 145:
            return has & FEATURE_ROW_REMAP ? as_uint(field, more->remapped[field->id - 142]) : NOT_SUPPORTED;
        case 147: return more->nvswitch_links ? as_uint(field, more->nvswitch_links) : NOT_SUPPORTED;
        case 165:
            if (!(has & FEATURE_LINK_STATE_FIELD)) return NOT_SUPPORTED;
            return field->scope < gpu->link_count ? as_uint(field, gpu->link_active[field->scope]) : INVALID_ARGUMENT;
        case 197: case 198:
            if (!(has & FEATURE_PCIE_BYTES)) return NOT_SUPPORTED;
            return as_type(field, (int)more->pcie_bytes_type, more->pcie_bytes[field->id - 197]);
        default: return link_error_field(gpu, field);
    }
}

/* Calls ----------------------------------------------------------------------------------------------------------- */

struct bar1 {
    unsigned long long total, free, used;
};

EXPORT int nvmlDeviceGetBAR1MemoryInfo(void *device, struct bar1 *bar1) {
    ON_DEVICE(nvmlDeviceGetBAR1MemoryInfo, device, {
        *bar1 = (struct bar1){gpu->more.bar1_total, gpu->more.bar1_total - gpu->more.bar1_used, gpu->more.bar1_used};
    });
}

#define ENGINE(function, place)                                                                     \
    EXPORT int function(void *device, unsigned int *percent, unsigned int *period_us) {             \
        ON_DEVICE(function, device, {                                                               \
            if (gpu->more.mig_mode[0]) result = NOT_SUPPORTED;                                      \
            else {                                                                                  \
                *percent = gpu->more.engine_pct[place];                                             \
                *period_us = 167000;                                                                \
            }                                                                                       \
        });                                                                                         \
    }
ENGINE(nvmlDeviceGetEncoderUtilization, 0)
ENGINE(nvmlDeviceGetDecoderUtilization, 1)
ENGINE(nvmlDeviceGetJpgUtilization, 2)
ENGINE(nvmlDeviceGetOfaUtilization, 3)

#define ONE_NUMBER(function, expression)                                          \
    EXPORT int function(void *device, unsigned int *value) {                      \
        ON_DEVICE(function, device, { *value = (unsigned int)(expression); });    \
    }
ONE_NUMBER(nvmlDeviceGetPerformanceState, gpu->more.pstate)
ONE_NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, gpu->more.pcie_generation[0])
ONE_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, gpu->more.pcie_generation[1])
ONE_NUMBER(nvmlDeviceGetCurrPcieLinkWidth, gpu->more.pcie_width[0])
ONE_NUMBER(nvmlDeviceGetMaxPcieLinkWidth, gpu->more.pcie_width[1])
ONE_NUMBER(nvmlDeviceGetPcieReplayCounter, gpu->more.pcie_replays)

EXPORT int nvmlDeviceGetPcieThroughput(void *device, unsigned int counter, unsigned int *kb_per_s) {
    ON_DEVICE(nvmlDeviceGetPcieThroughput, device, {
        nap_us(20000); /* it counts for that long */
        *kb_per_s = counter;
    });
}

EXPORT int nvmlDeviceGetMigMode(void *device, unsigned int *current, unsigned int *pending) {
    ON_DEVICE(nvmlDeviceGetMigMode, device, {
        *current = gpu->more.mig_mode[0];
        *pending = gpu->more.mig_mode[1];
    });
}

EXPORT int nvmlDeviceGetTotalEccErrors(void *device, unsigned int kind, unsigned int counter, unsigned long long *n) {
    ON_DEVICE(nvmlDeviceGetTotalEccErrors, device, { *n = ecc_total(&gpu->more, kind == 0, counter == 1); });
}

EXPORT int nvmlDeviceGetMemoryErrorCounter(void *device, unsigned int kind, unsigned int counter, unsigned int place,
                                           unsigned long long *count) {
    ON_DEVICE(nvmlDeviceGetMemoryErrorCounter, device, {
        if (place == 2) *count = gpu->more.dram[2 * (counter == 1) + kind];
        else if (place == 7) *count = sram_total(&gpu->more, kind == 0, counter == 1);
        else result = NOT_SUPPORTED;
    });
}

struct sram_status {
    unsigned int version;
    unsigned long long counts[11];
    unsigned int threshold_exceeded;
};

EXPORT int nvmlDeviceGetSramEccErrorStatus(void *device, struct sram_status *status) {
    ON_DEVICE(nvmlDeviceGetSramEccErrorStatus, device, {
        if (status->version != STRUCT_VERSION(struct sram_status, 1)) result = VERSION_MISMATCH;
        else if (!(gpu->features & FEATURE_SRAM_STATUS)) result = NOT_SUPPORTED;
        else {
            for (int i = 0; i < 11; i++) status->counts[i] = gpu->more.sram[i];
            status->threshold_exceeded = gpu->more.sram_threshold;
        }
    });
}

EXPORT int nvmlDeviceGetRemappedRows(void *device, unsigned int *corrected, unsigned int *uncorrected,
                                     unsigned int *pending, unsigned int *failure) {
    ON_DEVICE(nvmlDeviceGetRemappedRows, device, {
        if (!(gpu->features & FEATURE_ROW_REMAP)) result = NOT_SUPPORTED;
        else {
            *corrected = gpu->more.remapped[0];
            *uncorrected = gpu->more.remapped[1];
            *pending = gpu->more.remapped[2];
            *failure = gpu->more.remapped[3];
        }
    });
}

EXPORT int nvmlDeviceGetRowRemapperHistogram(void *device, unsigned int *banks) {
    ON_DEVICE(nvmlDeviceGetRowRemapperHistogram, device, {
        if (gpu->features & FEATURE_RETIRED_PAGES) result = NOT_SUPPORTED;
        else memcpy(banks, gpu->more.banks, sizeof gpu->more.banks);
    });
}

EXPORT int nvmlDeviceGetVbiosVersion(void *device, char *version, unsigned int length) {
    ON_DEVICE(nvmlDeviceGetVbiosVersion, device, { result = copy_text(version, length, gpu->more.vbios); });
}

EXPORT int nvmlDeviceGetBoardPartNumber(void *device, char *number, unsigned int length) {
    ON_DEVICE(nvmlDeviceGetBoardPartNumber, device, { result = copy_text(number, length, gpu->more.part_number); });
}

EXPORT int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    ON_DEVICE(nvmlDeviceGetCudaComputeCapability, device, {
        *major = gpu->more.compute_capability / 10;
        *minor = gpu->more.compute_capability % 10;
    });
}

#define ON_LINK(name, device, ...)                                     \
    ON_DEVICE(name, device, {                                          \
        if (gpu->link_count == 0) result = NOT_SUPPORTED;              \
        else if (link >= gpu->link_count) result = INVALID_ARGUMENT;   \
        else {                                                         \
            __VA_ARGS__                                                \
        }                                                              \
    })

EXPORT int nvmlDeviceGetNvLinkErrorCounter(void *device, unsigned int link, unsigned int kind, unsigned long long *n) {
    ON_LINK(nvmlDeviceGetNvLinkErrorCounter, device, {
        if (kind > 4) result = INVALID_ARGUMENT;
        else *n = gpu->more.link_error[kind][link];
    });
}

EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned int link, unsigned int *type) {
    ON_LINK(nvmlDeviceGetNvLinkRemoteDeviceType, device, { *type = gpu->more.link_remote_type[link]; });
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned int link, struct pci_info *info) {
    ON_LINK(nvmlDeviceGetNvLinkRemotePciInfo_v2, device, {
        memset(info, 0, sizeof *info);
        snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", gpu->more.link_remote_bus[link]);
    });
}

/* The fabric ------------------------------------------------------------------------------------------------------ */

struct fabric_v1 {
    uint8_t cluster[16];
    int status;
    uint32_t clique;
    uint8_t state;
};

struct fabric_v3 { /* version 2 ends before the summary, with the same offsets */
    unsigned int version;
    uint8_t cluster[16];
    int status;
    uint32_t clique;
    uint8_t state;
    uint32_t health;
    uint8_t summary;
};
#define FABRIC_V2 ((unsigned int)(0x24 | 2 << 24))

EXPORT int nvmlDeviceGetGpuFabricInfo(void *device, struct fabric_v1 *info) {
    ON_DEVICE(nvmlDeviceGetGpuFabricInfo, device, {
        if (!(gpu->features & FEATURE_FABRIC)) result = NOT_SUPPORTED;
        else {
            memcpy(info->cluster, gpu->more.cluster, sizeof info->cluster);
            info->status = (int)gpu->more.fabric[1];
            info->clique = gpu->more.fabric[2];
            info->state = (uint8_t)gpu->more.fabric[0];
        }
    });
}

EXPORT int nvmlDeviceGetGpuFabricInfoV(void *device, struct fabric_v3 *info) {
    ON_DEVICE(nvmlDeviceGetGpuFabricInfoV, device, {
        int is_v3 = info->version == STRUCT_VERSION(struct fabric_v3, 3);
        if ((!is_v3 && info->version != FABRIC_V2) || (is_v3 && gpu->more.fabric_version < 3)) result = VERSION_MISMATCH;
        else if (!(gpu->features & FEATURE_FABRIC)) result = NOT_SUPPORTED;
        else {
            memcpy(info->cluster, gpu->more.cluster, sizeof info->cluster);
            info->status = (int)gpu->more.fabric[1];
            info->clique = gpu->more.fabric[2];
            info->state = (uint8_t)gpu->more.fabric[0];
            info->health = gpu->more.fabric[3];
            if (is_v3) info->summary = (uint8_t)gpu->more.fabric[4];
        }
    });
}

/* GPM ------------------------------------------------------------------------------------------------------------- */

struct gpm_sample {
    int slot;
    int64_t at_ns;
};

struct gpm_support {
    unsigned int version, is_supported;
};

struct gpm_metric {
    unsigned int id;
    int result;
    double value;
    const char *names[3];
};

struct gpm_metrics {
    unsigned int version, count;
    struct gpm_sample *before, *after;
    struct gpm_metric metrics[];
};

EXPORT int nvmlGpmQueryDeviceSupport(void *device, struct gpm_support *support) {
    ON_DEVICE(nvmlGpmQueryDeviceSupport, device, { support->is_supported = (gpu->features & FEATURE_GPM) != 0; });
}

EXPORT int nvmlGpmSampleAlloc(struct gpm_sample **sample) {
    struct call call;
    int result = begin(&call, FN_nvmlGpmSampleAlloc, NO_DEVICE);
    if (result == OK) {
        *sample = calloc(1, sizeof **sample);
        __atomic_fetch_add(&state->gpm_samples, 1, __ATOMIC_SEQ_CST);
    }
    return end(&call, result);
}

EXPORT int nvmlGpmSampleFree(struct gpm_sample *sample) {
    struct call call;
    int result = begin(&call, FN_nvmlGpmSampleFree, NO_DEVICE);
    if (result == OK) {
        free(sample);
        __atomic_fetch_sub(&state->gpm_samples, 1, __ATOMIC_SEQ_CST);
    }
    return end(&call, result);
}

EXPORT int nvmlGpmSampleGet(void *device, struct gpm_sample *sample) {
    ON_DEVICE(nvmlGpmSampleGet, device, {
        if (!(gpu->features & FEATURE_GPM)) result = NOT_SUPPORTED;
        else *sample = (struct gpm_sample){slot, now_ns(CLOCK_MONOTONIC)};
    });
}

static int gpm_value(const struct more *more, struct gpm_metric *metric) {
    if (metric->id >= 1 && metric->id <= 13) metric->value = more->gpm[metric->id];
    else if (metric->id == 20 || metric->id == 21) metric->value = more->gpm[metric->id - 20 + 14];
    else if (metric->id == 60 || metric->id == 61) metric->value = more->gpm[metric->id - 60 + 16];
    else return NOT_SUPPORTED;
    return OK;
}

EXPORT int nvmlGpmMetricsGet(struct gpm_metrics *wanted) {
    struct gpm_sample *before = wanted->before, *after = wanted->after;
    if (before == NULL || after == NULL) return INVALID_ARGUMENT;
    struct call call;
    int result = begin(&call, FN_nvmlGpmMetricsGet, after->slot);
    /* Of one board, in this order, and more than 100 ms apart. */
    if (result == OK && (before->slot != after->slot || after->at_ns - before->at_ns <= 100000000)) result = INVALID_ARGUMENT;
    if (result == OK)
        for (unsigned int i = 0; i < wanted->count; i++)
            wanted->metrics[i].result = gpm_value(&state->gpus[after->slot].more, &wanted->metrics[i]);
    return end(&call, result);
}
