#include <dlfcn.h>

#include <array>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device.h"

// The binary is not linked with CUDA: what LibTorch's CUDA library has loaded is found by name. The types are those of
// cuda_runtime_api.h and cuda.h: results are enums with 0 for success, attributes are enums.

namespace vlmtrain::memory {

namespace {

template <class Function>
Function* find(void* library, const char* name) {
  auto* const function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr) throw run_error("device cuda: the CUDA libraries have no function {}", name);
  return function;
}

int attribute(int number, int device) {
  static auto* const get = find<int(int*, int, int)>(RTLD_DEFAULT, "cudaDeviceGetAttribute");
  int value = 0;
  if (get(&value, number, device) != 0)
    throw run_error("device cuda:{}: it does not tell attribute {}", device, number);
  return value;
}

std::string name_of(int device) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) throw run_error("device cuda: the driver's libcuda.so.1 cannot be loaded: {}", dlerror());
  std::array<char, 256> name{};
  const int error = find<int(char*, int, int)>(driver, "cuDeviceGetName")(name.data(), name.size(), device);
  if (error != 0) throw run_error("device cuda:{}: it does not tell its name (CUDA error {})", device, error);
  return name.data();
}

int number_of(at::Device device) {
  return static_cast<unsigned char>(device.index());
}

struct CardMemory {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
};

CardMemory ask_driver(int device) {
  static auto* const set_device = find<int(int)>(RTLD_DEFAULT, "cudaSetDevice");
  static auto* const get_memory = find<int(size_t*, size_t*)>(RTLD_DEFAULT, "cudaMemGetInfo");
  CardMemory memory;
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
  return static_cast<int64_t>(ask_driver(device.index()).free_bytes);
}

std::string bus_id(at::Device device) {
  static auto* const get = find<int(char*, int, int)>(RTLD_DEFAULT, "cudaDeviceGetPCIBusId");
  const int index = number_of(device);
  std::array<char, 32> id{};
  if (get(id.data(), static_cast<int>(id.size()), index) != 0) {
    throw run_error("device cuda:{}: it does not tell its place on the PCI bus", index);
  }
  return id.data();
}

int architecture_of(at::Device device) {
  // cudaDevAttrComputeCapabilityMajor and …Minor
  constexpr int kMajor = 75;
  constexpr int kMinor = 76;
  return 10 * attribute(kMajor, device.index()) + attribute(kMinor, device.index());
}

DeviceDescription describe(at::Device device) {
  constexpr int kMultiprocessors = 16;  // cudaDevAttrMultiProcessorCount
  const int index = number_of(device);
  const CardMemory memory = ask_driver(index);
  return {.name = name_of(index),
          .architecture = architecture_of(device),
          .multiprocessors = attribute(kMultiprocessors, index),
          .total_bytes = static_cast<int64_t>(memory.total_bytes),
          .free_bytes = static_cast<int64_t>(memory.free_bytes)};
}

}  // namespace vlmtrain::memory
