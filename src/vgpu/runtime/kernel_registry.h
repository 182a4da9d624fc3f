#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

namespace vlmtrain::vgpu {

/// The device code of one object file, compiled for several architectures. Thread-safe.
class FatBinary {
 public:
  /// `wrapper` is what the compiler's start-up code hands to __cudaRegisterFatBinary.
  explicit FatBinary(const void* wrapper) : wrapper_(wrapper) {}

  /// The architecture of the code that a card of `architecture` would run: machine code for the same major version, the
  /// newest that is not newer than the card, else the newest such PTX; 0 if there is none.
  int find_code(int architecture);

  /// As the driver does when the first of its kernels is launched: takes the memory and the time that the card's habits
  /// say. False, and to be done again, where the memory does not suffice.
  bool load();

 private:
  void parse();

  const void* wrapper_;
  std::once_flag parse_once_;
  std::vector<int> machine_code_;
  std::vector<int> ptx_;
  std::mutex load_mutex_;
  std::atomic<bool> loaded_{false};
};

struct Kernel {
  const char* name = nullptr;  ///< mangled
  FatBinary* code = nullptr;
  std::atomic<int64_t> shared_bytes_limit{48 << 10};  ///< of dynamic shared memory, until the program raises it
  std::atomic<uint64_t> launches{0};
};

/// A __device__ variable.
struct Variable {
  uint64_t address = 0;
  size_t bytes = 0;
};

/// What the start-up code of the CUDA libraries registers: fat binaries, and by the address of their host-side twin
/// kernels and variables. That address also serves as the kernel's handle. Thread-safe; nothing is ever taken out.
class KernelRegistry {
 public:
  FatBinary* add_binary(const void* wrapper);
  void add_kernel(const void* host_function, const char* name, FatBinary* code);
  void add_variable(const void* host_variable, size_t bytes);

  /// Null if it is not registered.
  Kernel* find_kernel(const void* host_function);
  std::optional<Variable> find_variable(const void* host_variable) const;

  void for_each_launched(void (*visit)(void* context, const char* name, uint64_t launches), void* context) const;
  void reset_launches();

 private:
  mutable std::shared_mutex mutex_;
  std::deque<FatBinary> binaries_;
  std::unordered_map<const void*, Kernel> kernels_;
  std::unordered_map<const void*, Variable> variables_;
};

KernelRegistry& kernel_registry();

}  // namespace vlmtrain::vgpu
