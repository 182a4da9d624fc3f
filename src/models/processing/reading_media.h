#pragma once

#include <cstdint>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/memory/host.h"

namespace vlmtrain::models {

/// What `function` gives; its error is one of the record that names the medium.
template <class Function>
auto read_medium(const io::Record& record, data::MediaKind kind, const Function& function) {
  try {
    return function();
  } catch (const UserError& error) {
    const char* const reason = kind == data::MediaKind::kVideo    ? "unusable video"
                               : kind == data::MediaKind::kVolume ? "unusable volume"
                                                                  : "unreadable image";
    throw data::SampleError(reason, fmt::format("sample {}: {}", record.id, error.what()));
  }
}

/// What this process may have.
inline int64_t host_bytes() {
  static const int64_t bytes = memory::host_limit_bytes();
  return bytes;
}

/// Of the host's memory, what making one sample may take: several threads do that, and the rest is the model's.
inline int64_t max_sample_bytes(int64_t host_bytes) {
  return host_bytes / 4;
}

}  // namespace vlmtrain::models
