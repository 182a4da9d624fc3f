#include <dlfcn.h>

#include <array>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device.h"

// The binary is not linked with CUDA: what LibTorch's CUDA library has loaded is found by name. The types are those of
// cuda_runtime_api.h and cuda.h: results are enums with 0 for success, attributes are enums.

namespace vlmtrain::memory {

namespace {

template <class Function>
Function* load_symbol(void* library, const char* name) {
  auto* const function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr) throw run_error("device cuda: the CUDA libraries have no function {}", name);
  return function;
}

int get_attribute(int attribute, int device) {
  static auto* const get_function = load_symbol<int(int*, int, int)>(RTLD_DEFAULT, "cudaDeviceGetAttribute");
  int value = 0;
  if (get_function(&value, attribute, device) != 0)
    throw run_error("device cuda:{}: it does not tell attribute {}", device, attribute);
  return value;
}

std::string get_device_name(int device) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) throw run_error("device cuda: the driver's libcuda.so.1 cannot be loaded: {}", dlerror());
  std::array<char, 256> name{};
  const int error = load_symbol<int(char*, int, int)>(driver, "cuDeviceGetName")(name.data(), name.size(), device);
  if (error != 0) throw run_error("device cuda:{}: it does not tell its name (CUDA error {})", device, error);
  return name.data();
}

int get_index(at::Device device) {
  return static_cast<unsigned char>(device.index());
}

struct MemoryInfo {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
};

MemoryInfo query_memory_info(int device) {
  static auto* const set_device = load_symbol<int(int)>(RTLD_DEFAULT, "cudaSetDevice");
  static auto* const get_memory = load_symbol<int(size_t*, size_t*)>(RTLD_DEFAULT, "cudaMemGetInfo");
  MemoryInfo memory;
  const int device_error = set_device(device);
  const int error = get_memory(&memory.free_bytes, &memory.total_bytes);
  if (device_error != 0 || error != 0) {
    throw run_error("device cuda:{}: its memory cannot be asked for (CUDA error {})", device,
                    device_error != 0 ? device_error : error);
  }
  return memory;
}

}  // namespace

int64_t free_bytes(at::Device device) {
  return static_cast<int64_t>(query_memory_info(device.index()).free_bytes);
}

std::string get_pci_bus_id(at::Device device) {
  static auto* const get_function = load_symbol<int(char*, int, int)>(RTLD_DEFAULT, "cudaDeviceGetPCIBusId");
  const int index = get_index(device);
  std::array<char, 32> id{};
  if (get_function(id.data(), static_cast<int>(id.size()), index) != 0) {
    throw run_error("device cuda:{}: it does not tell its place on the PCI bus", index);
  }
  return id.data();
}

int get_architecture(at::Device device) {
  // cudaDevAttrComputeCapabilityMajor and …Minor
  constexpr int kMajor = 75;
  constexpr int kMinor = 76;
  return 10 * get_attribute(kMajor, device.index()) + get_attribute(kMinor, device.index());
}

DeviceDescription describe(at::Device device) {
  constexpr int kMultiprocessors = 16;  // cudaDevAttrMultiProcessorCount
  const int index = get_index(device);
  const MemoryInfo memory = query_memory_info(index);
  return {.name = get_device_name(index),
          .architecture = get_architecture(device),
          .multiprocessors = get_attribute(kMultiprocessors, index),
          .total_bytes = static_cast<int64_t>(memory.total_bytes),
          .free_bytes = static_cast<int64_t>(memory.free_bytes)};
}

}  // namespace vlmtrain::memory
