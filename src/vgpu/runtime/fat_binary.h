#pragma once

#include <atomic>
#include <mutex>
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

}  // namespace vlmtrain::vgpu
