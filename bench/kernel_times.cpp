// kernel_times: a library that records when each kernel of a CUDA process ran, with CUPTI of
// LibTorch's wheel. The driver loads it into the process:
//
//   cmake --build --preset release --target kernel_times
//   CUDA_INJECTION64_PATH=build/release/libvlmtrain_kernel_times.so VLMTRAIN_KERNEL_TIMES=times.txt
// vlmtrain --config …
//
// bench/kernel_times.py makes a table of the file. Its lines are "N number name", before a name's
// first kernel, and "K number start end gx gy gz bx by bz", in nanoseconds, with the kernel's grid
// and block.

#include <cupti.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr size_t kAlignment = 8;  // of CUPTI's records

class Writer {
 public:
  explicit Writer(const char* path) : file_(std::fopen(path, "w")) {}

  void write(const CUpti_ActivityKernel10& kernel) {
    const std::lock_guard lock(mutex_);
    if (file_ == nullptr) return;
    const auto [it, is_new] = name_ids_.try_emplace(kernel.name, name_ids_.size());
    if (is_new) static_cast<void>(std::fprintf(file_, "N %zu %s\n", it->second, kernel.name));
    static_cast<void>(std::fprintf(file_, "K %zu %llu %llu %d %d %d %d %d %d\n", it->second,
                                   static_cast<unsigned long long>(kernel.start),
                                   static_cast<unsigned long long>(kernel.end), kernel.gridX, kernel.gridY,
                                   kernel.gridZ, kernel.blockX, kernel.blockY, kernel.blockZ));
  }
  void flush() {
    const std::lock_guard lock(mutex_);
    if (file_ != nullptr) static_cast<void>(std::fflush(file_));
  }

 private:
  std::FILE* file_;
  std::mutex mutex_;
  std::map<std::string, size_t> name_ids_;
};

Writer& writer() {
  static Writer& instance =
      *new Writer(std::getenv("VLMTRAIN_KERNEL_TIMES"));  // leaked, because buffers arrive until the process exits
  return instance;
}

void allocate_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes));
  *size = kBufferBytes;
  *max_records = 0;
}

void process_buffer(CUcontext /*context*/, uint32_t /*stream*/, uint8_t* buffer, size_t /*size*/, size_t valid_bytes) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
      writer().write(*reinterpret_cast<const CUpti_ActivityKernel10*>(record));
  }
  writer().flush();
  std::free(buffer);
}

}  // namespace

/// The driver calls it when a process initializes CUDA.
extern "C" [[gnu::visibility("default")]] int InitializeInjection() {
  if (std::getenv("VLMTRAIN_KERNEL_TIMES") == nullptr) return 0;
  constexpr uint32_t kMilliseconds = 500;
  if (cuptiActivityRegisterCallbacks(allocate_buffer, process_buffer) != CUPTI_SUCCESS ||
      cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) {
    static_cast<void>(std::fputs("kernel_times: CUPTI does not start\n", stderr));
    return 0;
  }
  cuptiActivityFlushPeriod(kMilliseconds);
  static_cast<void>(std::atexit([] { cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED); }));
  return 1;
}
