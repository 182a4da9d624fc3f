#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::fuzz {

/// Returns the input of libFuzzer as a text.
inline std::string_view to_text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// A file in memory with the bytes of an input.
class InputFile {
 public:
  InputFile(const uint8_t* data, size_t size) : descriptor_(memfd_create("input", MFD_CLOEXEC)) {
    if (descriptor_ < 0 || write(descriptor_, data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile() { close(descriptor_); }

  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

/// Runs `action`, which must accept the input or throw a UserError with a short, printable message.
/// All else is a finding.
template <class Action>
void expect_accepted_or_rejected(const Action& action) {
  try {
    action();
  } catch (const UserError& error) {
    constexpr size_t kMaxMessageBytes = 60'000;
    const std::string message = to_printable_message(error.what());
    if (message.empty() || message.size() > kMaxMessageBytes || !is_utf8(message)) std::abort();
  }
}

}  // namespace vlmtrain::fuzz
