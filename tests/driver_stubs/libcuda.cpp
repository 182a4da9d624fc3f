// A libcuda.so.1 that behaves like a driver of a given version with given GPUs, for tests on
// machines without them. It has the functions that a program calls before it creates a context, and
// no others.
//
// VLMTRAIN_STUB_DRIVER holds NAME=VALUE words: version (as cuDriverGetVersion counts: 12040), init
// (the result of cuInit), gpus (number of GPUs), architecture (compute capability × 10), name (of the GPUs, _ for
// spaces), total and free (bytes of a GPU), context (the result of creating one), crash (1: cuInit
// aborts the process).

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

namespace {

std::string read_setting(const std::string& key, const std::string& default_value) {
  const char* const settings = std::getenv("VLMTRAIN_STUB_DRIVER");
  std::istringstream words(settings == nullptr ? "" : settings);
  for (std::string entry; words >> entry;) {
    if (entry.rfind(key + "=", 0) == 0) return entry.substr(key.size() + 1);
  }
  return default_value;
}

int read_number(const std::string& key, int default_value) {
  return std::atoi(read_setting(key, std::to_string(default_value)).c_str());
}

constexpr int kNotInitialized = 3;
bool is_initialized = false;

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's.
extern "C" {

int cuDriverGetVersion(int* version) {
  *version = read_number("version", 13000);
  return 0;
}

int cuInit(unsigned) {
  if (read_number("crash", 0) != 0) std::abort();
  const int result = read_number("init", 0);
  is_initialized = result == 0;
  return result;
}

int cuDeviceGetCount(int* count) {
  *count = read_number("gpus", 1);
  return is_initialized ? 0 : kNotInitialized;
}

int cuDeviceGet(int* device, int index) {
  constexpr int kInvalidDevice = 101;
  *device = index;
  return index < read_number("gpus", 1) ? 0 : kInvalidDevice;
}

int cuDeviceGetName(char* name, int capacity, int) {
  std::string text = read_setting("name", "NVIDIA_Stub_9000");
  std::replace(text.begin(), text.end(), '_', ' ');
  std::strncpy(name, text.c_str(), static_cast<size_t>(capacity) - 1);
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  constexpr int kMajor = 75;
  constexpr int kMinor = 76;
  const int architecture = read_number("architecture", 90);
  *value = attribute == kMajor ? architecture / 10 : attribute == kMinor ? architecture % 10 : 0;
  return 0;
}

int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = std::strtoull(read_setting("total", "25000000000").c_str(), nullptr, 10);
  return 0;
}

int cuDevicePrimaryCtxRetain(void**, int) {
  return read_number("context", 0);
}

int cuDevicePrimaryCtxRelease_v2(int) {
  return 0;
}

int cuCtxPushCurrent_v2(void*) {
  return 0;
}

int cuCtxPopCurrent_v2(void**) {
  return 0;
}

int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = std::strtoull(read_setting("free", "24500000000").c_str(), nullptr, 10);
  return cuDeviceTotalMem_v2(total, 0);
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
