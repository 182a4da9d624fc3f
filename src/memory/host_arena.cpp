#include "vlmtrain/memory/host_arena.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <system_error>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/host_memory.h"

namespace vlmtrain::memory {

namespace {

/// Bytes that one call registers. The driver holds its lock during a call.
constexpr size_t kBytesPerRegistration = size_t{1} << 30;
constexpr unsigned kMapIntoDevice = 0x02;  // cudaHostRegisterMapped

template <class Function>
Function* load_cuda_function(const char* name) {
  auto* const function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  if (function == nullptr) throw run_error("device cuda: the CUDA libraries have no function {}", name);
  return function;
}

/// Page-locked memory. Unregisters and unmaps its pages.
class MappedPages {
 public:
  explicit MappedPages(size_t bytes) : bytes_(bytes) {
    // Without MAP_NORESERVE, a host without overcommit would refuse the address space of a virtual GPU.
    address_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address_ == MAP_FAILED) {
      throw UserError(ExitCode::kDoesNotFit,
                      fmt::format("{:.2f} GB of host memory cannot be mapped: {}",
                                  to_gigabytes(static_cast<int64_t>(bytes)), std::system_category().message(errno)));
    }
    madvise(address_, bytes, MADV_HUGEPAGE);  // without support, the pages stay small
  }
  ~MappedPages() {
    static auto* const unregister = load_cuda_function<int(void*)>("cudaHostUnregister");
    for (size_t offset = 0; offset < num_registered_bytes_; offset += kBytesPerRegistration)
      unregister(static_cast<std::byte*>(address_) + offset);
    munmap(address_, bytes_);
  }
  MappedPages(const MappedPages&) = delete;
  MappedPages& operator=(const MappedPages&) = delete;

  /// Page-locks the memory and maps it into the address space of the current device. Returns CUDA's
  /// error code, 0 for success.
  int register_with_cuda() {
    static auto* const register_pages = load_cuda_function<int(void*, size_t, unsigned)>("cudaHostRegister");
    while (num_registered_bytes_ < bytes_) {
      const size_t count = std::min(kBytesPerRegistration, bytes_ - num_registered_bytes_);
      if (const int error =
              register_pages(static_cast<std::byte*>(address_) + num_registered_bytes_, count, kMapIntoDevice)) {
        return error;
      }
      num_registered_bytes_ += count;
    }
    return 0;
  }

  void* address() const { return address_; }

 private:
  void* address_;
  size_t bytes_;
  size_t num_registered_bytes_ = 0;
};

}  // namespace

at::Tensor HostArena::allocate(at::IntArrayRef sizes, at::ScalarType dtype, const char* purpose) {
  const auto bytes = c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
  bytes_ += bytes;
  if (!device_.is_cuda()) return at::empty(sizes, at::TensorOptions(dtype).device(device_));
  const bool is_virtual = is_virtual_gpu_loaded();
  if (const AvailableHostMemory available = get_available_host_memory(); !is_virtual && bytes > available.bytes) {
    throw UserError(ExitCode::kDoesNotFit,
                    fmt::format("{}: {:.2f} GB of host memory are needed, {:.2f} GB are available ({}); keep the "
                                "weights on the device",
                                purpose, to_gigabytes(bytes), to_gigabytes(available.bytes), available.limit_source));
  }
  auto pages = std::make_unique<MappedPages>(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  if (const int error = pages->register_with_cuda()) {
    throw run_error(
        "{}: CUDA cannot map {:.2f} GB of host memory (error {} of cudaHostRegister); keep the weights on the device, "
        "or raise the limit of locked memory (ulimit -l)",
        purpose, to_gigabytes(bytes), error);
  }
  void* const address = pages->address();
  return at::from_blob(
      address, sizes, [pages = pages.release()](void*) { delete pages; }, at::TensorOptions(dtype));
}

at::Tensor HostArena::view_on_device(const at::Tensor& tensor) const {
  if (!device_.is_cuda()) return tensor;
  static auto* const get_device_pointer = load_cuda_function<int(void**, void*, unsigned)>("cudaHostGetDevicePointer");
  void* address = nullptr;
  const int error = get_device_pointer(&address, tensor.mutable_data_ptr(), /*flags=*/0);
  // The registered pieces are contiguous on the device only if it uses the host's addresses, as all
  // GPUs do on Linux.
  if (error != 0 || address != tensor.data_ptr())
    throw run_error("device cuda: the GPU cannot read host memory at its address (error {})", error);
  return at::for_blob(address, tensor.sizes())
      .deleter([tensor](void*) {})  // keeps the memory
      .options(tensor.options().device(device_))
      .target_device(device_)
      .make_tensor();
}

}  // namespace vlmtrain::memory
