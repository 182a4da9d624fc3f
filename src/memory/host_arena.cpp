#include "vlmtrain/memory/host_arena.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
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

/// The page-locked memory of this process. Thread-safe.
class PageLockedRanges {
 public:
  void add(const void* first, size_t bytes) {
    const std::lock_guard lock(mutex_);
    ranges_[first] = bytes;
  }
  void remove(const void* first) {
    const std::lock_guard lock(mutex_);
    ranges_.erase(first);
  }
  bool contains(const void* address) const {
    const std::lock_guard lock(mutex_);
    const auto next = ranges_.upper_bound(address);
    if (next == ranges_.begin()) return false;
    const auto& [first, bytes] = *std::prev(next);
    return static_cast<const std::byte*>(address) < static_cast<const std::byte*>(first) + bytes;
  }

 private:
  mutable std::mutex mutex_;
  std::map<const void*, size_t> ranges_;  // bytes by first address
};

PageLockedRanges& page_locked_ranges() {
  static auto* const ranges = new PageLockedRanges;  // never destroyed: tensors may live longer than statics
  return *ranges;
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
    page_locked_ranges().remove(address_);
    static auto* const unregister = load_cuda_function<int(void*)>("cudaHostUnregister");
    for (size_t offset = 0; offset < num_registered_bytes_; offset += kBytesPerRegistration)
      unregister(static_cast<std::byte*>(address_) + offset);
    munmap(address_, bytes_);
  }
  MappedPages(const MappedPages&) = delete;
  MappedPages& operator=(const MappedPages&) = delete;

  /// Makes the kernel provide the pages, in parallel. Registration would do that in one thread, at about
  /// 2 GB per second.
  void touch() {
    constexpr int64_t kPageBytes = 4096, kPagesPerTask = 1 << 14;
    auto* const bytes = static_cast<volatile std::byte*>(address_);
    const auto pages = static_cast<int64_t>(bytes_) / kPageBytes;
    at::parallel_for(0, pages, kPagesPerTask, [bytes](int64_t first, int64_t end) {
      for (int64_t page = first; page < end; ++page) bytes[page * kPageBytes] = std::byte{0};
    });
  }

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
    page_locked_ranges().add(address_, bytes_);
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
  if (!device_.is_cuda()) return at::zeros(sizes, at::TensorOptions(dtype).device(device_));
  const bool is_virtual = is_virtual_gpu_loaded();
  if (const AvailableHostMemory available = get_available_host_memory(); !is_virtual && bytes > available.bytes) {
    throw UserError(ExitCode::kDoesNotFit,
                    fmt::format("{}: {:.2f} GB of host memory are needed, {:.2f} GB are available ({}); choose a value "
                                "that needs less",
                                purpose, to_gigabytes(bytes), to_gigabytes(available.bytes), available.limit_source));
  }
  auto pages = std::make_unique<MappedPages>(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  if (!is_virtual) pages->touch();
  if (const int error = pages->register_with_cuda()) {
    throw run_error(
        "{}: CUDA cannot map {:.2f} GB of host memory (error {} of cudaHostRegister); raise the limit of locked memory "
        "(ulimit -l), or choose a value that needs less",
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

at::Tensor view_on_host(const at::Tensor& tensor) {
  if (!tensor.is_cuda() || is_virtual_gpu_loaded() || !page_locked_ranges().contains(tensor.const_data_ptr()))
    return tensor;
  const at::Device device = tensor.device();
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), [tensor](void*) {} /* keeps the memory */,
      at::TensorOptions(tensor.scalar_type()));
}

}  // namespace vlmtrain::memory
