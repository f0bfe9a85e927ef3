/* Copyright (c) 2026, specdec.serving contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A double of libnvidia-ml.so.1 for tests: it answers from a JSON file, named by NVML_DOUBLE or else
 * /etc/nvml-double.json. It also has the functions of libcuda.so.1 that the probe calls.
 *
 * A member that is absent or null is NVML_ERROR_NOT_SUPPORTED; one that is an object {"error": N} is
 * that error. "init": N makes nvmlInit answer N, "cuda_init": N cuInit; "hang": 1 makes cuInit hang,
 * "crash": 1 nvmlInit abort. Structures are those of NVML's header.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPUS = 1000 };

/* A handle is the number of a GPU plus one; of a MIG device, GPUS times its place more. */
typedef struct device *Device;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; } Process;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;

static char *document;

/* JSON: pointers into the document; nothing is copied and no syntax is checked. */

static const char *space(const char *p) { return p + strspn(p, " \t\r\n,:"); }

static const char *past_string(const char *p) {
  for (p++; *p != '"'; p++) p += *p == '\\';
  return p + 1;
}

static const char *past_value(const char *p) {
  if (*p == '"') return past_string(p);
  if (*p != '{' && *p != '[') return p + strcspn(p, ",]} \t\r\n");
  for (p = space(p + 1); *p != '}' && *p != ']'; p = space(past_value(p)));
  return p + 1;
}

/* The value at a path such as devices.0.name, or NULL. */
static const char *at(const char *path) {
  const char *p = space(document);
  while (p && *path) {
    size_t length = strcspn(path, ".");
    int object = *p == '{';
    long left = object ? 0 : strtol(path, NULL, 10);
    if (!object && *p != '[') return NULL;
    for (p = space(p + 1);; p = space(past_value(p))) {
      if (*p == '}' || *p == ']') return NULL;
      if (!object && left-- == 0) break;
      if (object) {
        const char *key = p + 1;
        int found = strncmp(key, path, length) == 0 && key[length] == '"';
        p = space(past_string(p));
        if (found) break;
      }
    }
    path += length + (path[length] == '.');
  }
  return p;
}

/* What a function answers for a path: SUCCESS and the value, or the error that stands there. */
static int find(const char **value, const char *format, va_list arguments) {
  char path[200];
  vsnprintf(path, sizeof path, format, arguments);
  *value = at(path);
  if (!*value || strncmp(*value, "null", 4) == 0) return NOT_SUPPORTED;
  if (**value != '{') return SUCCESS;
  strcat(path, ".error");
  const char *error = at(path);
  return error ? atoi(error) : INVALID_ARGUMENT;
}

static int number(unsigned long long *out, const char *format, ...) {
  const char *value;
  va_list arguments;
  va_start(arguments, format);
  int code = find(&value, format, arguments);
  va_end(arguments);
  if (code == SUCCESS) *out = strtoull(value, NULL, 10);
  return code;
}

static int text(char *out, unsigned size, const char *format, ...) {
  const char *value;
  va_list arguments;
  va_start(arguments, format);
  int code = find(&value, format, arguments);
  va_end(arguments);
  if (code == SUCCESS) snprintf(out, size, "%.*s", (int)(past_string(value) - value - 2), value + 1);
  return code;
}

static int small(unsigned *out, const char *where, const char *what) {
  unsigned long long value = 0;
  int code = number(&value, "%s.%s", where, what);
  if (code == SUCCESS) *out = value;
  return code;
}

static unsigned long handle(Device device) { return (unsigned long)device - 1; }

static const char *where(Device device) {
  static char path[2][80];
  static int turn;
  char *out = path[turn ^= 1];
  unsigned long value = handle(device), part = value / GPUS;
  int length = snprintf(out, sizeof path[0], "devices.%lu", value % GPUS);
  if (part) snprintf(out + length, sizeof path[0] - length, ".mig.devices.%lu", part - 1);
  return out;
}

/* NVML */

static int load(void) {
  const char *name = getenv("NVML_DOUBLE");
  FILE *file = fopen(name ? name : "/etc/nvml-double.json", "r");
  if (document) return SUCCESS;
  document = calloc(1, 1 << 20);
  if (!file || !document || !fread(document, 1, (1 << 20) - 1, file)) abort();
  return fclose(file);
}

static unsigned long long flag(const char *name) {
  unsigned long long value = 0;
  load();
  number(&value, name);
  return value;
}

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  if (flag("crash")) abort();
  return flag("init");
}

const char *nvmlErrorString(int code) { return code ? "an error" : "Success"; }

int nvmlSystemGetDriverVersion(char *out, unsigned size) { return text(out, size, "driver"); }

int nvmlSystemGetCudaDriverVersion(int *out) {
  *out = flag("cuda");
  return SUCCESS;
}

int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
  unsigned long long seen;
  for (int gpu = 0; gpu < 64; gpu++)
    for (int i = 0; number(&seen, "devices.%d.processes.%d.pid", gpu, i) == SUCCESS; i++)
      if (seen == pid) return text(out, size, "devices.%d.processes.%d.name", gpu, i);
  return NOT_FOUND;
}

int nvmlDeviceGetCount_v2(unsigned *out) {
  char path[32];
  for (*out = 0; snprintf(path, sizeof path, "devices.%u", *out), at(path); (*out)++);
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *out) {
  unsigned long long code = SUCCESS;
  number(&code, "devices.%u.error", index);
  *out = (Device)(unsigned long)(index + 1);
  return code;
}

int nvmlDeviceGetUUID(Device device, char *out, unsigned size) { return text(out, size, "%s.uuid", where(device)); }
int nvmlDeviceGetName(Device device, char *out, unsigned size) { return text(out, size, "%s.name", where(device)); }

int nvmlDeviceGetPciInfo_v3(Device device, Pci *out) {
  memset(out, 0, sizeof *out);
  return text(out->bus_id, sizeof out->bus_id, "%s.bus_id", where(device));
}

int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
  int code = small((unsigned *)major, where(device), "compute_capability.0");
  return code ? code : small((unsigned *)minor, where(device), "compute_capability.1");
}

int nvmlDeviceGetMemoryInfo(Device device, Memory *out) {
  memset(out, 0, sizeof *out);
  return number(&out->total, "%s.memory", where(device));
}

int nvmlDeviceGetCurrPcieLinkGeneration(Device device, unsigned *out) { return small(out, where(device), "pcie.generation"); }
int nvmlDeviceGetCurrPcieLinkWidth(Device device, unsigned *out) { return small(out, where(device), "pcie.width"); }
int nvmlDeviceGetMaxPcieLinkGeneration(Device device, unsigned *out) { return small(out, where(device), "pcie.max_generation"); }
int nvmlDeviceGetMaxPcieLinkWidth(Device device, unsigned *out) { return small(out, where(device), "pcie.max_width"); }

int nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *out) {
  unsigned active = 0;
  int code = small(&active, where(device), "nvlinks");
  *out = 1;
  return code ? code : link < active ? SUCCESS : INVALID_ARGUMENT;
}

static int pair(unsigned *out, const char *matrix, Device one, Device other) {
  unsigned long long value = 0;
  int code = number(&value, "%s.%lu.%lu", matrix, handle(one), handle(other));
  *out = value;
  return code;
}

int nvmlDeviceGetTopologyCommonAncestor(Device one, Device other, unsigned *out) { return pair(out, "paths", one, other); }

int nvmlDeviceGetP2PStatus(Device one, Device other, unsigned kind, unsigned *out) {
  (void)kind;
  return pair(out, "p2p", one, other);
}

int nvmlDeviceGetRemappedRows(Device device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
  *corrected = *uncorrected = 0;
  int code = small(pending, where(device), "remapping.0");
  return code ? code : small(failed, where(device), "remapping.1");
}

int nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) {
  int code = small(current, where(device), "mig.enabled");
  *pending = *current;
  return code;
}

int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *out) {
  (void)device;
  *out = 7;
  return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *out) {
  char path[120];
  snprintf(path, sizeof path, "%s.mig.devices.%u", where(device), index);
  *out = (Device)((index + 1) * (unsigned long)GPUS + handle(device) + 1);
  return at(path) ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(Device device, unsigned *out) { return small(out, where(device), "gpu_instance"); }
int nvmlDeviceGetComputeInstanceId(Device device, unsigned *out) { return small(out, where(device), "compute_instance"); }

int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, Process *out) {
  const char *path = where(device);
  unsigned long long pid, bytes;
  unsigned seen = 0, room = out ? *count : 0;
  for (; number(&pid, "%s.processes.%u.pid", path, seen) == SUCCESS; seen++)
    if (seen < room) {
      if (number(&bytes, "%s.processes.%u.bytes", path, seen) != SUCCESS) bytes = -1ULL; /* NVML_VALUE_NOT_AVAILABLE */
      out[seen] = (Process){pid, bytes, -1U, -1U};
    }
  *count = seen;
  return seen > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* CUDA */

int cuDriverGetVersion(int *out) {
  *out = flag("cuda");
  return SUCCESS;
}

int cuInit(unsigned flags) {
  (void)flags;
  if (flag("hang")) pause();
  return flag("cuda_init");
}

int cuGetErrorName(int code, const char **out) {
  *out = code ? "CUDA_ERROR" : "CUDA_SUCCESS";
  return SUCCESS;
}

/* A device of CUDA is the number of a GPU. A GPU that NVML says is in error is not among them. */

static int gpu_of(int ordinal) {
  char path[32];
  unsigned long long error;
  for (int gpu = 0; snprintf(path, sizeof path, "devices.%d", gpu), at(path); gpu++)
    if (number(&error, "devices.%d.error", gpu) != SUCCESS && ordinal-- == 0) return gpu;
  return -1;
}

int cuDeviceGetCount(int *out) {
  for (*out = 0; gpu_of(*out) >= 0; (*out)++);
  return SUCCESS;
}

int cuDeviceGet(int *out, int ordinal) {
  *out = gpu_of(ordinal);
  return SUCCESS;
}

int cuDeviceGetName(char *out, int size, int device) { return text(out, size, "devices.%d.name", device); }

int cuDeviceGetPCIBusId(char *out, int size, int device) {
  char whole[32] = "";
  int code = text(whole, sizeof whole, "devices.%d.bus_id", device);
  snprintf(out, size, "%s", strlen(whole) > 12 ? whole + strlen(whole) - 12 : whole);
  return code;
}

int cuDeviceTotalMem_v2(size_t *out, int device) {
  unsigned long long value = 0;
  int code = number(&value, "devices.%d.memory", device);
  *out = code ? 128ULL << 30 : value;
  return SUCCESS;
}

/* 18: whether the memory is the host's; 75 and 76: the compute capability. */
int cuDeviceGetAttribute(int *out, int attribute, int device) {
  unsigned long long value = 0;
  int code = attribute == 18 ? number(&value, "devices.%d.memory", device) == NOT_SUPPORTED
                             : number(&value, "devices.%d.compute_capability.%d", device, attribute - 75);
  *out = attribute == 18 ? code : (int)value;
  return attribute == 18 ? SUCCESS : code;
}
